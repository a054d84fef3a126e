package harness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client"
)

// heard is a test that only listens to what it is told.
type heard struct {
	testing.TB
	faults []string
}

func (*heard) Helper()             {}
func (*heard) Logf(string, ...any) {}

// Errorf implements testing.TB: it keeps the kind of the fault.
func (h *heard) Errorf(format string, args ...any) {
	for _, kind := range []string{"LOST", "INVENTED", "TWO CONTENTS", "two ids"} {
		if text := fmt.Sprintf(format, args...); strings.Contains(text, kind) {
			h.faults = append(h.faults, kind)
		}
	}
}

func came(offset uint64, id, text string) client.Delivery {
	return client.Delivery{Record: client.Record{ID: id, Partition: 1, Offset: offset, Payload: []byte(text)}}
}

func receipt(offset uint64, id string) client.Receipt {
	partition := uint32(1)
	return client.Receipt{ID: id, Partition: &partition, Offset: &offset}
}

func TestLedgerTellsTwoContents(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(l *Ledger)
		want    []string
	}{
		"each its place and id":             {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(1, "j", "b")) }, nil},
		"the same again":                    {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(0, "i", "a")) }, nil},
		"committed, then delivered":         {func(l *Ledger) { l.Committed(receipt(0, "i"), "a"); l.Delivered(came(0, "i", "a")) }, nil},
		"rerouted":                          {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(7, "i", "a")) }, nil},
		"one place, two texts":              {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(0, "j", "b")) }, []string{"TWO CONTENTS"}},
		"one id, two texts":                 {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(1, "i", "b")) }, []string{"TWO CONTENTS"}},
		"one place, two ids":                {func(l *Ledger) { l.Delivered(came(0, "i", "a")); l.Delivered(came(0, "j", "a")) }, []string{"TWO CONTENTS", "two ids"}},
		"committed, and another delivered":  {func(l *Ledger) { l.Committed(receipt(0, "i"), "a"); l.Delivered(came(0, "j", "b")) }, []string{"TWO CONTENTS"}},
		"two committed to one place":        {func(l *Ledger) { l.Committed(receipt(0, "i"), "a"); l.Committed(receipt(0, "j"), "b") }, []string{"TWO CONTENTS"}},
		"committed without saying where":    {func(l *Ledger) { l.Committed(client.Receipt{ID: "i"}, "a") }, []string{"TWO CONTENTS"}},
		"more than are named: the sum also": {func(l *Ledger) { manyConflicts(l, mostNamed+1) }, slices.Repeat([]string{"TWO CONTENTS"}, mostNamed+1)},
	} {
		l := NewLedger()
		l.Sending("a", "b")
		c.happens(l)
		h := &heard{TB: t}
		l.Judge(h, func(_, _ time.Time) bool { return true })
		if !slices.Equal(h.faults, c.want) {
			t.Errorf("%s: %q, want %q", name, h.faults, c.want)
		}
	}
}

// manyConflicts has n places with two contents.
func manyConflicts(l *Ledger, n int) {
	for i := range n {
		l.Committed(receipt(uint64(i), fmt.Sprint("one-", i)), "a")
		l.Committed(receipt(uint64(i), fmt.Sprint("two-", i)), "b")
	}
}

func TestLedgerComparesWhatIsStored(t *testing.T) {
	first, second := place{1, 0}, place{1, 1}
	for name, c := range map[string]struct {
		stored map[place]placed
		want   []string
	}{
		"everything":          {map[place]placed{first: {"i", "a", "replay"}, second: {"j", "b", "replay"}}, nil},
		"unknown and stored":  {map[place]placed{first: {"i", "a", "replay"}, second: {"j", "b", "replay"}, {2, 0}: {"k", "c", "replay"}}, nil},
		"delivered, and gone": {map[place]placed{second: {"j", "b", "replay"}}, []string{"LOST", "LOST"}},
		"committed, and gone": {map[place]placed{first: {"i", "a", "replay"}}, []string{"LOST"}},
		"delivered, moved":    {map[place]placed{{1, 9}: {"i", "a", "replay"}, second: {"j", "b", "replay"}}, []string{"LOST"}},
		"other bytes":         {map[place]placed{first: {"i", "a", "replay"}, second: {"j", "c", "replay"}}, []string{"TWO CONTENTS", "TWO CONTENTS"}},
		"never sent":          {map[place]placed{first: {"i", "a", "replay"}, second: {"j", "b", "replay"}, {2, 0}: {"k", "z", "replay"}}, []string{"INVENTED"}},
	} {
		l := NewLedger()
		l.Sending("a", "b", "c")
		l.Produced(nil, "a")
		l.Delivered(came(0, "i", "a"))
		l.Committed(receipt(1, "j"), "b")
		h := &heard{TB: t}
		l.holdAgainst(h, "topic", c.stored)
		if !slices.Equal(h.faults, c.want) {
			t.Errorf("%s: %q, want %q", name, h.faults, c.want)
		}
	}
}
