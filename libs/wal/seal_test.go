package wal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/vfs"
)

// TestSealUnderLoad: what was acknowledged before or during Seal is readable when it
// returns, and nothing is acknowledged after it, here or after a restart.
func TestSealUnderLoad(t *testing.T) {
	m := newMem(t)
	slow := vfs.NewFault(m, func(vfs.Op) vfs.Fault { return vfs.Fault{} })
	w := open(t, slow, small())
	var mu sync.Mutex // guards acked
	var acked []string
	var wg sync.WaitGroup
	started := make(chan struct{}, 8)
	for i := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("a%d-%d", i, n)
				_, err := appendNames(w, name)
				if err != nil {
					if !errors.Is(err, ErrSealed) || !errors.Is(err, ErrRefused) {
						t.Errorf("%v", err)
					}
					return
				}
				mu.Lock()
				acked = append(acked, name)
				mu.Unlock()
				if n == 20 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	must(t, w.Seal())
	got := namesOf(drain(t, w)) // at once: the appenders may not have noted their answers yet
	wg.Wait()
	must(t, w.Seal())
	for _, name := range acked {
		if !slices.Contains(got, name) {
			t.Fatalf("%s was acknowledged and is not there when the seal is", name)
		}
	}
	must(t, w.Close())
	if err := w.Seal(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	w = open(t, m, small())
	if _, err := appendNames(w, "late"); !errors.Is(err, ErrSealed) {
		t.Errorf("after a restart: %v", err)
	}
	if refuses, saved := w.Sealed(); !refuses || !saved {
		t.Error("it does not say so")
	}
	must(t, w.Unseal())
	must(t, w.Unseal())
	if _, err := appendNames(w, "again"); err != nil {
		t.Errorf("unsealed: %v", err)
	}
	must(t, w.Close())
}

// TestSealIsDurable cuts the power at every operation of Seal and Unseal: once either
// has returned, what it said holds for whoever opens next.
func TestSealIsDurable(t *testing.T) {
	m := newMem(t)
	const undecided, yes, no = "undecided", "sealed", "not sealed"
	want, cuts := no, 0
	check := func() {
		w := open(t, m.CrashClone(nil), small())
		cuts++
		if refuses, _ := w.Sealed(); want != undecided && refuses != (want == yes) {
			t.Errorf("cut %d: refuses %v, want %s", cuts, refuses, want)
		}
		must(t, w.Close())
	}
	fail := 0
	f := vfs.NewFault(m, func(op vfs.Op) vfs.Fault {
		if !op.Changes() || want == no && cuts == 0 {
			return vfs.Fault{}
		}
		check()
		if fail--; fail == 0 {
			return vfs.Fault{Err: errDisk}
		}
		return vfs.Fault{}
	})
	w := open(t, f, small())
	for n := range 4 {
		want, fail = undecided, n
		for err := w.Seal(); err != nil; err = w.Seal() {
			if refuses, _ := w.Sealed(); !refuses || !errors.Is(err, errDisk) {
				t.Fatalf("%v, and it accepts", err)
			}
		}
		want = yes
		check()
		want, fail = undecided, n
		for err := w.Unseal(); err != nil; err = w.Unseal() {
			if refuses, _ := w.Sealed(); !refuses {
				t.Fatalf("%v, and it accepts", err)
			}
		}
		want = no
		check()
	}
	if cuts < 20 {
		t.Errorf("only %d cuts", cuts)
	}
	must(t, w.Close())
}

// TestSealWaitsForWhatIsOnItsWay: one unit is being synced and one is staged behind it.
func TestSealWaitsForWhatIsOnItsWay(t *testing.T) {
	var holds atomic.Bool
	gate, inSync := make(chan struct{}), make(chan struct{}, 8)
	f := vfs.NewFault(newMem(t), func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && holds.Load() {
			inSync <- struct{}{}
			<-gate
		}
		return vfs.Fault{}
	})
	w := open(t, f, small())
	holds.Store(true)
	answers := make(chan error, 2)
	send := func(name string) {
		_, err := appendNames(w, name)
		answers <- err
	}
	go send("first")
	<-inSync
	go send("second")
	testkit.Poll(t, patience, "it is staged", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.cur.buf) > 0
	})
	var read []string
	sealed := make(chan error, 1)
	go func() {
		err := w.Seal()
		read = namesOf(drain(t, w))
		sealed <- err
	}()
	testkit.Poll(t, patience, "it refuses", func() bool { refuses, _ := w.Sealed(); return refuses })
	if _, err := appendNames(w, "third"); !errors.Is(err, ErrSealed) {
		t.Errorf("a unit after it: %v", err)
	}
	early := time.NewTimer(50 * time.Millisecond)
	defer early.Stop()
	select {
	case <-sealed:
		t.Error("it is sealed while units are on their way")
	case <-early.C:
	}
	close(gate)
	must(t, <-answers)
	must(t, <-answers)
	must(t, <-sealed)
	if !slices.Equal(read, []string{"first", "second"}) {
		t.Errorf("read %q", read)
	}
	must(t, w.Close())
}

// patience bounds what has to happen at once.
const patience = testkit.Patience
