package node

import (
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/topic"
)

// A copy is judged only by the word of a leader that leads and is proven: every doubt
// keeps it as it is.
func TestUndecided(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(*metaapi.Holding, *nodeapi.Vouch)
		judged bool
	}{
		"all is well":                    {func(*metaapi.Holding, *nodeapi.Vouch) {}, true},
		"unknown to the metastore":       {func(h *metaapi.Holding, _ *nodeapi.Vouch) { h.Known = false }, false},
		"held again":                     {func(h *metaapi.Holding, _ *nodeapi.Vouch) { h.Nodes = append(h.Nodes, "s1") }, false},
		"nobody leads":                   {func(h *metaapi.Holding, _ *nodeapi.Vouch) { h.Leader = "" }, false},
		"it leads itself":                {func(h *metaapi.Holding, _ *nodeapi.Vouch) { h.Leader = "s1" }, false},
		"the leader does not answer":     {func(_ *metaapi.Holding, v *nodeapi.Vouch) { *v = nodeapi.Vouch{} }, false},
		"the leader of another epoch":    {func(_ *metaapi.Holding, v *nodeapi.Vouch) { v.Epoch = 4 }, false},
		"nothing of its epoch committed": {func(_ *metaapi.Holding, v *nodeapi.Vouch) { v.Proven = false }, false},
	} {
		h := metaapi.Holding{Known: true, Leader: "s2", LeaderEpoch: 5, Nodes: []string{"s2"}}
		v := nodeapi.Vouch{Epoch: 5, Proven: true, HWM: 100}
		c.do(&h, &v)
		if why := undecided("s1", h, v); (why == "") != c.judged {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// A copy goes only when the leader holds all that it has and all that it knew of;
// else it is set aside.
func TestJudgeLeftover(t *testing.T) {
	epochs := func(starts ...int64) (out []partlog.EpochStart) { // of epochs 1, 2, 3
		for i, at := range starts {
			out = append(out, partlog.EpochStart{Epoch: 1 + topic.Epoch(i), Start: at})
		}
		return out
	}
	for name, c := range map[string]struct {
		do   func(*partlog.Remains, *nodeapi.Vouch)
		goes bool
	}{
		"all is well":                   {func(*partlog.Remains, *nodeapi.Vouch) {}, true},
		"the leader has more":           {func(_ *partlog.Remains, v *nodeapi.Vouch) { v.HWM = 200 }, true},
		"the leader has one less":       {func(_ *partlog.Remains, v *nodeapi.Vouch) { v.HWM = 99 }, false},
		"it stored less than it has":    {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.State.HWM = 7 }, true},
		"it has more than it stored":    {func(r *partlog.Remains, v *nodeapi.Vouch) { r.LEO, v.HWM = 120, 110 }, false},
		"it had more than it has":       {func(r *partlog.Remains, v *nodeapi.Vouch) { r.State.HWM = 130 }, false},
		"an epoch that nobody else has": {func(r *partlog.Remains, v *nodeapi.Vouch) { r.Epochs, v.HWM = epochs(0, 40, 90), 500 }, false},
		"the leader tells no history":   {func(_ *partlog.Remains, v *nodeapi.Vouch) { v.History = nil }, false},
		"nothing was in it":             {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.LEO, r.State.HWM, r.Epochs = 0, 0, nil }, true},
		"no valid state":                {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.Found = false }, false},
		"damage of which all is kept by the leader": {func(r *partlog.Remains, v *nodeapi.Vouch) {
			r.Damaged, r.Whole, r.Pieces = true, true, []partlog.Piece{{Name: "a", Size: 1, CRC: 2}}
			v.Pieces = []nodeapi.Piece{{Name: "a", Size: 1, CRC: 2}}
		}, true},
		"it awaited damaged bytes": {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.Damaged, r.Whole = true, true }, true},
		"damage of the leader alone": {func(_ *partlog.Remains, v *nodeapi.Vouch) {
			v.Pieces = []nodeapi.Piece{{Name: "a", Size: 1, CRC: 2}}
		}, false},
		"records that the leader knows to be missing": {func(_ *partlog.Remains, v *nodeapi.Vouch) { v.Lost = true }, false},
		"damage of which it does not tell": {func(r *partlog.Remains, _ *nodeapi.Vouch) {
			r.Damaged, r.Whole, r.Pieces = true, true, []partlog.Piece{{Name: "a", Size: 1, CRC: 2}}
		}, false},
		"damage of which the leader lacks some": {func(r *partlog.Remains, v *nodeapi.Vouch) {
			r.Damaged, r.Whole, r.Pieces = true, true, []partlog.Piece{{Name: "a", Size: 1, CRC: 2}, {Name: "b"}}
			v.Pieces = []nodeapi.Piece{{Name: "a", Size: 1, CRC: 2}}
		}, false},
		"damage of which the leader keeps other bytes": {func(r *partlog.Remains, v *nodeapi.Vouch) {
			r.Damaged, r.Whole, r.Pieces = true, true, []partlog.Piece{{Name: "a", Size: 1, CRC: 2}}
			v.Pieces = []nodeapi.Piece{{Name: "a", Size: 1, CRC: 3}}
		}, false},
		"damage of which not all was kept": {func(r *partlog.Remains, v *nodeapi.Vouch) {
			r.Damaged, r.Pieces = true, []partlog.Piece{{Name: "a"}}
			v.Pieces = []nodeapi.Piece{{Name: "a"}}
		}, false},
		"damage of which nothing was kept": {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.Damaged = true }, false},
		"no copy id":                       {func(r *partlog.Remains, _ *nodeapi.Vouch) { r.State.CopyID = 0 }, false},
	} {
		r := &partlog.Remains{State: partlog.State{CopyID: 7, HWM: 100}, Found: true, LEO: 100, Epochs: epochs(0, 40)}
		v := nodeapi.Vouch{Epoch: 5, Proven: true, HWM: 100, History: []nodeapi.EpochStart{{Epoch: 1, Start: 0}, {Epoch: 2, Start: 40}}}
		c.do(r, &v)
		if why := judgeLeftover(r, v); (why == "") != c.goes {
			t.Errorf("%s: %q", name, why)
		}
	}
}
