package topicdir

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const otherID topic.Incarnation = 0x1000000000000001

// twoLives leaves a directory of oldID under the name, an older quarantine of it,
// and a quarantine of another incarnation.
func twoLives(t *testing.T, fs vfs.FS) {
	t.Helper()
	for _, d := range []struct {
		name, content string
		id            topic.Incarnation
	}{{"orders", "old", oldID}, {"orders.stale-3f9a17c4e2b08d51", "older", oldID}, {"orders.stale-1000000000000001", "other", otherID}} {
		dir := "data/topics/" + d.name
		if err := errors.Join(fs.MkdirAll(dir), writeMarker(fs, dir, d.id), fs.SyncDir("data/topics")); err != nil {
			t.Fatal(err)
		}
		put(t, fs, dir, d.content)
	}
}

func namesOf(t *testing.T, s *Store) (out []string) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Name)
	}
	return out
}

func TestPurge(t *testing.T) {
	mem := memory(t)
	s := newStore(t, mem)
	twoLives(t, mem)
	var at []string // what stood under the name whenever state had to go
	purged, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone, Dropped: func(id topic.Incarnation) {
		if id != oldID {
			t.Errorf("dropped %s", id)
		}
		at = append(at, get(mem, "data/topics/orders"))
	}})
	if err != nil || purged != (Ended{Directories: 2, Bytes: int64(len("old") + len("older"))}) {
		t.Fatalf("%+v, %v", purged, err)
	}
	if !slices.Equal(at, []string{"old", "", ""}) {
		t.Errorf("dropped when %q stood there", at)
	}
	if got := namesOf(t, s); !slices.Equal(got, []string{"orders.stale-1000000000000001"}) {
		t.Errorf("left %v", got)
	}
	again, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone})
	if err != nil || again != (Ended{}) {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// A purge that comes late: the name has a successor, whose directory stays.
func TestPurgeLeavesTheSuccessorAlone(t *testing.T) {
	mem := memory(t)
	s := newStore(t, mem)
	put(t, mem, mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID}).Path, "old")
	put(t, mem, mustOpen(t, s, Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone}).Path, "new")
	purged, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone})
	if err != nil || purged.Directories != 1 || get(mem, "data/topics/orders") != "new" {
		t.Errorf("%+v, %v", purged, err)
	}
	if got := namesOf(t, s); !slices.Equal(got, []string{"orders"}) {
		t.Errorf("left %v", got)
	}
}

// Whatever is asked with whatever verdict: only what carries a marker of the id
// that is gone is removed, and without that nothing changes at all.
func TestNothingButTheGoneIsRemoved(t *testing.T) {
	mem := memory(t)
	changes := 0
	s := newStore(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRename || op.Kind == vfs.OpRemove {
			changes++
		}
		return vfs.Fault{}
	}))
	twoLives(t, mem)
	for _, dir := range []string{"data/topics/bare/p00000", "data/topics/bare.stale-0000000000000000/p00000", "data/staging/half/p00000"} {
		if err := mem.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 6 {
		t.Fatalf("%+v, %v", list, err)
	}
	changes = 0
	for _, v := range []Verdict{Unknown, Live, Gone, 77} {
		for _, e := range list {
			for _, marker := range []topic.Incarnation{0, e.Marker, newID} {
				if v == Gone && marker == e.Marker && marker != 0 {
					continue // the one case that removes
				}
				judged := e
				judged.Marker = marker
				if n, err := s.Reclaim(judged, v, nil); !errors.Is(err, ErrNotGone) && !errors.Is(err, ErrChanged) || n != 0 {
					t.Errorf("%+v, %d: %d, %v", judged, v, n, err)
				}
				if v == Gone && marker == newID {
					continue
				}
				if _, err := s.Purge(Ending{Topic: e.Topic, Incarnation: marker, Verdict: v}); !errors.Is(err, ErrNotGone) {
					t.Errorf("purge %s of %s, %d: %v", marker, e.Topic, v, err)
				}
			}
		}
	}
	if changes != 0 {
		t.Errorf("%d changes", changes)
	}
	if _, err := s.Reclaim(Entry{Name: "a b", Kind: Foreign, Marker: oldID}, Gone, nil); !errors.Is(err, ErrNotGone) {
		t.Errorf("foreign: %v", err)
	}
	if _, err := s.Reclaim(Entry{Name: "x.stale-3f9a17c4e2b08d51", Topic: "x", Kind: SetAside, Marker: oldID}, Gone, nil); !errors.Is(err, ErrAbsent) {
		t.Errorf("absent: %v", err)
	}
	for _, e := range list {
		if e.Marker == oldID {
			if n, err := s.Reclaim(e, Gone, nil); err != nil || n == 0 {
				t.Errorf("%+v: %d, %v", e, n, err)
			}
		}
	}
	if got := namesOf(t, s); len(got) != 4 || slices.Contains(got, "orders") {
		t.Errorf("left %v", got)
	}
}

// The power fails before every change of the disk while one life is purged beside
// others: whatever then stands there, the next life starts empty, the others are whole, and what
// is left of the dead one can be told and is reclaimed.
func TestPurgePowerCutAtEveryOperation(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		mem := memory(t)
		setup := newStore(t, mem)
		twoLives(t, mem)
		put(t, mem, mustOpen(t, setup, Request{Topic: "bystander", Incarnation: newID}).Path, "mine")
		if err := mem.SyncDir("data/staging"); err != nil {
			t.Fatal(err)
		}
		cuts := 0
		check := func(at string) {
			cuts++
			choose := rng
			if seed == 0 {
				choose = nil
			}
			disk := mem.CrashClone(choose)
			s, err := New(disk, "data")
			if err != nil {
				t.Fatal(err)
			}
			o := mustOpen(t, s, Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone})
			if o.Unsure || get(disk, o.Path) != "" {
				t.Fatalf("%s: the next life got %+v with %q", at, o, get(disk, o.Path))
			}
			list, err := s.List()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				v := Live
				if e.Marker == oldID || e.Marker == 0 {
					v = Gone
				}
				if _, err := s.Reclaim(e, v, nil); v == Gone && err != nil {
					t.Fatalf("%s: %+v: %v", at, e, err)
				}
			}
			want := []string{"bystander", "orders", "orders.stale-1000000000000001"}
			if got := namesOf(t, s); !slices.Equal(got, want) || get(disk, "data/topics/bystander") != "mine" || get(disk, "data/topics/"+want[2]) != "other" {
				t.Fatalf("%s, seed %d: left %v", at, seed, got)
			}
		}
		s := newStore(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Changes() {
				check(string(op.Kind) + " " + op.Path)
			}
			return vfs.Fault{}
		}))
		if _, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone}); err != nil {
			t.Fatal(err)
		}
		check("end")
		if cuts < 10 {
			t.Fatalf("only %d cuts", cuts)
		}
	}
}

// Every operation of a purge fails once (a rename that is refused among them): it
// is an error, nothing of others is touched, and the next try ends it.
func TestPurgeFaultAtEveryOperation(t *testing.T) {
	for n := int64(1); ; n++ {
		mem := memory(t)
		newStore(t, mem)
		twoLives(t, mem)
		armed := false
		hit, first := "", int64(0)
		s := newStore(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if !armed {
				first = op.N
				return vfs.Fault{}
			}
			if op.N != first+n {
				return vfs.Fault{}
			}
			hit = string(op.Kind) + " " + op.Path
			return vfs.Fault{Err: syscall.EIO}
		}))
		armed = true
		_, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone})
		armed = false
		if hit == "" {
			if err != nil || n < 15 {
				t.Fatalf("after %d operations: %v", n, err)
			}
			return
		}
		// A tree that cannot be sized is removed all the same.
		if !errors.Is(err, syscall.EIO) && !strings.HasPrefix(hit, "readdir data/topics/orders.stale-3f9a17c4e2b08d51") {
			t.Fatalf("%s failed: %v", hit, err)
		}
		if got := get(mem, "data/topics/orders.stale-1000000000000001"); got != "other" {
			t.Fatalf("%s: the other life has %q", hit, got)
		}
		if _, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone}); err != nil {
			t.Fatalf("after %s failed: %v", hit, err)
		}
		list, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list { // what only a sweep finds
			if e.Marker == oldID || e.Marker == 0 {
				if _, err := s.Reclaim(e, Gone, nil); err != nil {
					t.Fatalf("after %s failed: %+v: %v", hit, e, err)
				}
			}
		}
		if got := namesOf(t, s); !slices.Equal(got, []string{"orders.stale-1000000000000001"}) {
			t.Fatalf("after %s failed: left %v", hit, got)
		}
	}
}

// What stands under a topic's name on a real disk and is none of ours is left
// alone by opens, purges and sweeps, and what it leads to as well.
func TestForeignThingsUnderATopicsName(t *testing.T) {
	for _, kind := range []string{"file", "link", "dangling", "unreadable"} {
		t.Run(kind, func(t *testing.T) {
			data, target := t.TempDir(), t.TempDir()
			osfs := vfs.OS()
			s, err := New(osfs, data)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(writeMarker(osfs, target, oldID), os.WriteFile(target+"/mine", []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
			at := data + "/topics/orders"
			switch kind {
			case "file":
				err = os.WriteFile(at, []byte(encodeMarker(oldID)), 0o600)
			case "link":
				err = os.Symlink(target, at)
			case "dangling":
				err = os.Symlink(target+"/nowhere", at)
			case "unreadable":
				if os.Getuid() == 0 {
					t.Skip("root reads everything; TestReadErrorsAreNoVerdict injects it")
				}
				err = os.Mkdir(at, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			if o, err := s.Open(Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone}); err == nil {
				t.Errorf("opened: %+v", o)
			} else if kind != "unreadable" && !errors.Is(err, ErrNotDirectory) {
				t.Error(err)
			}
			_, _ = s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone})
			if n, err := s.Reclaim(Entry{Name: "orders", Topic: "orders", Marker: oldID}, Gone, nil); err == nil || n != 0 {
				t.Errorf("reclaimed %d bytes, %v", n, err)
			}
			if _, err := os.Lstat(at); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(target + "/mine"); err != nil || string(b) != "x" {
				t.Errorf("what the link leads to: %q, %v", b, err)
			}
			mustOpen(t, s, Request{Topic: "bystander", Incarnation: newID})
		})
	}
}

// A link inside of a dead topic goes, and not what it leads to.
func TestLinksInsideAreNotFollowed(t *testing.T) {
	data, target := t.TempDir(), t.TempDir()
	s, err := New(vfs.OS(), data)
	if err != nil {
		t.Fatal(err)
	}
	o := mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID})
	if err := errors.Join(os.WriteFile(target+"/mine", make([]byte, 1000), 0o600), os.Symlink(target, o.Path+"/p00000")); err != nil {
		t.Fatal(err)
	}
	purged, err := s.Purge(Ending{Topic: "orders", Incarnation: oldID, Verdict: Gone})
	if err != nil || purged.Directories != 1 || purged.Bytes >= 1000 {
		t.Errorf("%+v, %v", purged, err)
	}
	if _, err := os.Stat(target + "/mine"); err != nil {
		t.Error(err)
	}
}

// caseless is a disk that ignores the case of letters.
type caseless struct{ vfs.FS }

func (c caseless) Lstat(name string) (fs.FileInfo, error) { return c.FS.Lstat(strings.ToLower(name)) }

func (c caseless) OpenRead(name string) (vfs.File, error) {
	return c.FS.OpenRead(strings.ToLower(name))
}
func (c caseless) Open(name string) (vfs.File, error)   { return c.FS.Open(strings.ToLower(name)) }
func (c caseless) Create(name string) (vfs.File, error) { return c.FS.Create(strings.ToLower(name)) }

func (c caseless) MkdirAll(name string) error { return c.FS.MkdirAll(strings.ToLower(name)) }

func (c caseless) Remove(name string) error { return c.FS.Remove(strings.ToLower(name)) }

func (c caseless) RemoveAll(name string) error { return c.FS.RemoveAll(strings.ToLower(name)) }

func (c caseless) SyncDir(name string) error { return c.FS.SyncDir(strings.ToLower(name)) }

func (c caseless) ReadDir(name string) ([]fs.DirEntry, error) {
	return c.FS.ReadDir(strings.ToLower(name))
}

func (c caseless) Rename(from, to string) error {
	return c.FS.Rename(strings.ToLower(from), strings.ToLower(to))
}

// Names that differ only by case are one directory there: the marker decides, and the
// two names have one guard.
func TestNamesThatDifferByCase(t *testing.T) {
	mem := memory(t)
	s := newStore(t, caseless{mem})
	put(t, mem, mustOpenAt(t, s, "Orders", oldID, 0), "old")
	var needed *VerdictNeeded
	if _, err := s.Open(Request{Topic: "orders", Incarnation: newID}); !errors.As(err, &needed) || needed.Found != oldID {
		t.Fatalf("%v", err)
	}
	put(t, mem, mustOpenAt(t, s, "orders", newID, oldID), "new")
	purged, err := s.Purge(Ending{Topic: "Orders", Incarnation: oldID, Verdict: Gone})
	if err != nil || purged.Directories != 1 || get(mem, "data/topics/orders") != "new" {
		t.Errorf("%+v, %v", purged, err)
	}
	release := s.guard("Orders")
	entered := make(chan struct{})
	go func() { s.guard("oRDERS")(); close(entered) }()
	select {
	case <-entered:
		t.Error("two guards for one directory")
	default:
	}
	release()
	<-entered
}

func mustOpenAt(t *testing.T, s *Store, name string, id, judged topic.Incarnation) string {
	t.Helper()
	return strings.ToLower(mustOpen(t, s, Request{Topic: name, Incarnation: id, Judged: judged, Verdict: Gone}).Path)
}

func TestParseKey(t *testing.T) {
	for _, e := range []Entry{
		{Name: "orders", Topic: "orders"},
		{Name: "orders.stale-3f9a17c4e2b08d51-2", Topic: "orders", Kind: SetAside},
		{Name: "orders.quarantine", Topic: "orders", Kind: Superseded},
		{Name: "orders@3f9a17c4e2b08d51", Topic: "orders", Kind: Staged},
	} {
		if got, ok := ParseKey(e.Key()); !ok || got != e {
			t.Errorf("%s: %+v, %t", e.Key(), got, ok)
		}
	}
	for _, bad := range []string{"", "topics", "topics/", "topics/..", "topics/.", "topics/a/b", "raft/log", "/topics/a", "topics/../raft", "staging/..", "../topics/a", path.Join("topics", "..", "..")} {
		if e, ok := ParseKey(bad); ok {
			t.Errorf("%q: %+v", bad, e)
		}
	}
}
