package node

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// A copy ends only by the word of a leader that leads, is proven and has all that
// the copy had committed; every doubt keeps it, and a leader that has less sets it
// aside.
func TestJudgeLeftover(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*leftover, *metaapi.Holding, *nodeapi.Vouch)
		want fate
	}{
		"all is well":                    {nil, reclaim},
		"the leader has more":            {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { v.HWM = 200 }, reclaim},
		"the leader has one less":        {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { v.HWM = 99 }, aside},
		"of before a reset":              {func(l *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { l.before, v.HWM = true, 200 }, aside},
		"no valid state":                 {func(l *leftover, _ *metaapi.Holding, _ *nodeapi.Vouch) { l.valid = false }, aside},
		"no copy id":                     {func(l *leftover, _ *metaapi.Holding, _ *nodeapi.Vouch) { l.state.CopyID = 0 }, aside},
		"unknown to the metastore":       {func(_ *leftover, h *metaapi.Holding, _ *nodeapi.Vouch) { h.Known = false }, keep},
		"held again":                     {func(_ *leftover, h *metaapi.Holding, _ *nodeapi.Vouch) { h.Nodes = append(h.Nodes, "s1") }, keep},
		"nobody leads":                   {func(_ *leftover, h *metaapi.Holding, _ *nodeapi.Vouch) { h.Leader = "" }, keep},
		"it leads itself":                {func(_ *leftover, h *metaapi.Holding, _ *nodeapi.Vouch) { h.Leader = "s1" }, keep},
		"the leader does not answer":     {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { *v = nodeapi.Vouch{} }, keep},
		"the leader of another epoch":    {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { v.Epoch = 4 }, keep},
		"nothing of its epoch committed": {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { v.Proven = false }, keep},
		"not proven, and less":           {func(_ *leftover, _ *metaapi.Holding, v *nodeapi.Vouch) { v.Proven, v.HWM = false, 1 }, keep},
	} {
		l := &leftover{state: partlog.State{CopyID: 7, HWM: 100}, valid: true}
		h := metaapi.Holding{Known: true, Leader: "s2", LeaderEpoch: 5, Nodes: []string{"s2"}}
		v := nodeapi.Vouch{Epoch: 5, Proven: true, HWM: 100}
		if c.do != nil {
			c.do(l, &h, &v)
		}
		if got, why := judgeLeftover(l, "s1", h, v); got != c.want {
			t.Errorf("%s: %d (%s), want %d", name, got, why, c.want)
		}
	}
}

// What a copy has of before a reset is told by its epochs; one that tells none may
// have anything.
func TestPredates(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("/p"); err != nil {
		t.Fatal(err)
	}
	n := &Node{cfg: Config{FS: fs}}
	if before, err := n.predates("/p", 1); err != nil || !before {
		t.Errorf("a copy that tells nothing: before the reset %v, %v", before, err)
	}
	log, err := partlog.Open(fs, "/p", partlog.Options{})
	if err == nil {
		err = log.BeginEpoch(3, 0)
	}
	if err == nil {
		_, err = log.Append(record.AppendLeaderChange(nil, 3), 3, 1)
	}
	if err == nil {
		_, err = log.Sync()
	}
	if err = errors.Join(err, log.SaveState(partlog.State{CopyID: 7, DiskID: 1, HWM: 1}, true), log.Close()); err != nil {
		t.Fatal(err)
	}
	for reset, want := range map[topic.Epoch]bool{0: false, 2: false, 3: false, 4: true} {
		if before, err := n.predates("/p", reset); err != nil || before != want {
			t.Errorf("reset with epoch %d: before it %v, %v", reset, before, err)
		}
	}
}
