package topicdir

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	oldID topic.Incarnation = 0x3f9a17c4e2b08d51
	newID topic.Incarnation = 0x7c21000000000001
)

func newStore(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := New(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func memory(t *testing.T) *vfs.Mem {
	t.Helper()
	fs := vfs.NewMem()
	if err := errors.Join(fs.MkdirAll("data"), fs.SyncDir("/")); err != nil {
		t.Fatal(err)
	}
	return fs
}

func mustOpen(t *testing.T, s *Store, req Request) Opened {
	t.Helper()
	o, err := s.Open(req)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// put leaves a partition's file in an opened directory.
func put(t *testing.T, fs vfs.FS, opened, content string) {
	t.Helper()
	dir := PartitionDir(opened, 3)
	f, err := fs.Create(path.Join(dir, "log"))
	if err != nil {
		if err = fs.MkdirAll(dir); err == nil {
			f, err = fs.Create(path.Join(dir, "log"))
		}
	}
	if err == nil {
		_, err = f.WriteAt([]byte(content), 0)
	}
	if err == nil {
		err = errors.Join(f.Sync(), fs.SyncDir(dir), fs.SyncDir(opened), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func get(fs vfs.FS, opened string) string {
	f, err := fs.OpenRead(path.Join(PartitionDir(opened, 3), "log"))
	if err != nil {
		return ""
	}
	b := make([]byte, 100)
	n, _ := f.ReadAt(b, 0)
	_ = f.Close()
	return string(b[:n])
}

func TestMarkerGolden(t *testing.T) {
	want := "3f9a17c4e2b08d51 1bbd0345\n"
	if got := string(encodeMarker(oldID)); got != want {
		t.Errorf("marker %q, want %q", got, want)
	}
	for _, bad := range []string{
		"", "3", "3f9a17c4e2b08d51", "3f9a17c4e2b08d51\n", want + "\n", want[:25], want[:25] + "\x00", "3f9a17c4e2b08d50" + want[16:],
		string(make([]byte, markerSize)), string(encodeMarker(oldID)[:17]) + "00000000\n",
	} {
		if parseMarker([]byte(bad)) != 0 {
			t.Errorf("accepted %q", bad)
		}
	}
	for bit := range len(want) * 8 {
		b := []byte(want)
		b[bit/8] ^= 1 << (bit % 8)
		if parseMarker(b) != 0 {
			t.Errorf("bit %d flipped: accepted %q", bit, b)
		}
	}
}

func TestOpenMakesAndFinds(t *testing.T) {
	fs := memory(t)
	s := newStore(t, fs)
	o := mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID})
	if !o.Created || o.Path != "data/topics/orders" || o.SetAside != "" {
		t.Fatalf("%+v", o)
	}
	put(t, fs, o.Path, "old")
	if o = mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID}); o.Created || get(fs, o.Path) != "old" {
		t.Fatalf("%+v", o)
	}
	if len(s.guards) != 0 {
		t.Errorf("%d guards left", len(s.guards))
	}
	for _, name := range []string{"", "..", "a/b", "orders.stale-3f9a17c4e2b08d51"} {
		if _, err := s.Open(Request{Topic: name, Incarnation: oldID}); !errors.Is(err, topic.ErrInvalidName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := s.Open(Request{Topic: "orders"}); !errors.Is(err, ErrIncarnation) {
		t.Errorf("no incarnation: %v", err)
	}
}

func TestOpenNeverServesAnotherIncarnation(t *testing.T) {
	fs := memory(t)
	s := newStore(t, fs)
	put(t, fs, mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID}).Path, "old")
	req := Request{Topic: "orders", Incarnation: newID}
	var needed *VerdictNeeded
	for _, judged := range []topic.Incarnation{0, newID} { // none, or on another id
		req.Judged, req.Verdict = judged, Gone
		if _, err := s.Open(req); !errors.As(err, &needed) || needed.Found != oldID {
			t.Fatalf("judged %s: %v", judged, err)
		}
	}
	req.Judged, req.Verdict = oldID, Live
	if _, err := s.Open(req); !errors.Is(err, ErrLive) {
		t.Fatalf("live: %v", err)
	}
	if get(fs, "data/topics/orders") != "old" {
		t.Fatal("moved on a refusal")
	}
	dropped := false
	req.Verdict = Gone
	req.Dropped = func(id topic.Incarnation) {
		_, err := fs.Stat("data/topics/orders")
		dropped = id == oldID && err != nil // before the fresh one exists
	}
	o := mustOpen(t, s, req)
	if !o.Created || o.Unsure || o.SetAside != "orders.stale-3f9a17c4e2b08d51" || !dropped || get(fs, o.Path) != "" {
		t.Fatalf("%+v, dropped %t", o, dropped)
	}
	if get(fs, "data/topics/"+o.SetAside) != "old" {
		t.Fatal("the old bytes are gone")
	}
	// The verdict was wrong after all: the old one comes back, the new one waits.
	put(t, fs, o.Path, "new")
	o = mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID, Judged: newID})
	if !o.Restored || !o.Unsure || get(fs, o.Path) != "old" || o.SetAside != "orders.stale-7c21000000000001" {
		t.Fatalf("%+v", o)
	}
	list, err := s.List()
	if err != nil || !slices.Equal(list, []Entry{
		{"orders", "orders", Serving, oldID}, {"orders.stale-7c21000000000001", "orders", SetAside, newID},
	}) {
		t.Fatalf("%+v, %v", list, err)
	}
}

func TestWithoutAValidMarker(t *testing.T) {
	for _, content := range []string{"", "x", "3f9a17c4e2b08d51\n", string(bytes.Repeat([]byte{0}, 26))} {
		fs := memory(t)
		s := newStore(t, fs)
		o := mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID})
		put(t, fs, o.Path, "old")
		f, err := fs.Open("data/topics/orders/incarnation")
		if err == nil {
			err = f.Truncate(0)
		}
		if err == nil {
			_, err = f.WriteAt([]byte(content), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"orders.stale-0000000000000000", "orders.stale-0000000000000000-1"} {
			o = mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID})
			if !o.Unsure || !o.Created || o.SetAside != want {
				t.Fatalf("%q: %+v", content, o)
			}
			if i == 0 && get(fs, "data/topics/"+o.SetAside) != "old" {
				t.Fatal("the bytes are gone")
			}
			if err := fs.Remove("data/topics/orders/incarnation"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAmbiguousQuarantineIsRefused(t *testing.T) {
	fs := memory(t)
	s := newStore(t, fs)
	for _, suffix := range []string{"", "-1"} {
		dir := "data/topics/orders.stale-3f9a17c4e2b08d51" + suffix
		if err := errors.Join(fs.MkdirAll(dir), writeMarker(fs, dir, oldID)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Open(Request{Topic: "orders", Incarnation: oldID}); !errors.Is(err, ErrAmbiguous) {
		t.Fatalf("%v", err)
	}
}

// A shortage says nothing about a directory: nothing is renamed (or removed).
func TestReadErrorsAreNoVerdict(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpRead, vfs.OpStat, vfs.OpReadDir} {
		mem := memory(t)
		fail := false
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if fail && op.Kind == kind {
				return vfs.Fault{Err: syscall.EMFILE}
			}
			if fail && (op.Kind == vfs.OpRename || op.Kind == vfs.OpRemove) && kind != vfs.OpReadDir {
				t.Errorf("%s %s after a failed %s", op.Kind, op.Path, kind)
			}
			return vfs.Fault{}
		})
		s := newStore(t, fs)
		put(t, fs, mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID}).Path, "old")
		fail = true
		_, err := s.Open(Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone})
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%s: %v", kind, err)
		}
		fail = false
		mustOpen(t, s, Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone})
		if get(mem, "data/topics/orders.stale-3f9a17c4e2b08d51") != "old" {
			t.Errorf("%s: the old bytes are gone", kind)
		}
	}
}

// What cannot be looked at is not said to be missing.
func TestHasPartition(t *testing.T) {
	fail := false
	fs := vfs.NewFault(memory(t), func(op vfs.Op) vfs.Fault {
		if fail && op.Kind == vfs.OpStat {
			return vfs.Fault{Err: syscall.EMFILE}
		}
		return vfs.Fault{}
	})
	s := newStore(t, fs)
	if err := fs.MkdirAll(PartitionDir(mustOpen(t, s, Request{Topic: "orders", Incarnation: newID}).Path, 3)); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[int32]bool{3: true, 4: false} {
		if got, err := s.HasPartition("orders", p); got != want || err != nil {
			t.Errorf("partition %d: %v, %v", p, got, err)
		}
	}
	if got, err := s.HasPartition("none", 3); got || err != nil {
		t.Errorf("no topic: %v, %v", got, err)
	}
	fail = true
	if got, err := s.HasPartition("orders", 3); got || err == nil {
		t.Errorf("a disk that fails: %v, %v", got, err)
	}
}

// The power fails before every change of the disk while one incarnation is made,
// filled and replaced by another: the old bytes are never served to the new one,
// and never lost.
func TestPowerCutAtEveryOperation(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := memory(t)
		filled := false
		check := func(at string) {
			choose := rng
			if seed == 0 {
				choose = nil
			}
			disk := mem.CrashClone(choose)
			s, err := New(disk, "data")
			if err != nil {
				t.Fatal(err)
			}
			o, err := s.Open(Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone})
			if err != nil {
				t.Fatal(err)
			}
			if get(disk, o.Path) != "" {
				t.Fatal("old bytes served to the new incarnation")
			}
			if o.Unsure {
				t.Fatalf("a directory without a marker: %+v", o)
			}
			o, err = s.Open(Request{Topic: "orders", Incarnation: oldID, Judged: newID, Verdict: Unknown})
			if err != nil {
				t.Fatal(err)
			}
			if filled && get(disk, o.Path) != "old" {
				l, _ := s.List()
				t.Fatalf("%s: seed %d: the old bytes are lost: %+v %+v", at, seed, o, l)
			}
		}
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Changes() {
				check(string(op.Kind) + " " + op.Path)
			}
			return vfs.Fault{}
		})
		s, err := New(fs, "data")
		if err != nil {
			t.Fatal(err)
		}
		o := mustOpen(t, s, Request{Topic: "orders", Incarnation: oldID})
		put(t, mem, o.Path, "old")
		filled = true
		mustOpen(t, s, Request{Topic: "orders", Incarnation: newID, Judged: oldID, Verdict: Gone})
		check("end")
	}
}

func TestStagingIsCleared(t *testing.T) {
	fs := memory(t)
	newStore(t, fs)
	dir := "data/staging/orders@3f9a17c4e2b08d51"
	if err := errors.Join(fs.MkdirAll(dir), writeMarker(fs, dir, oldID), fs.MkdirAll("data/staging/keep/p00000")); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, fs)
	list, err := s.List()
	if err != nil || !slices.Equal(list, []Entry{{"keep", "keep", Staged, 0}}) {
		t.Fatalf("%+v, %v", list, err)
	}
}

// A process that was killed between the last two steps of a removal leaves an empty
// quarantine. Nobody can be asked whose it was: the next start removes it, and
// nothing else.
func TestEmptiedQuarantinesAreCleared(t *testing.T) {
	fs := memory(t)
	newStore(t, fs)
	for _, d := range []string{"empty.stale-3f9a17c4e2b08d51", "unmarked.stale-3f9a17c4e2b08d51/p00000", "marked.stale-3f9a17c4e2b08d51", "serving", "old.quarantine"} {
		if err := fs.MkdirAll("data/topics/" + d); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeMarker(fs, "data/topics/marked.stale-3f9a17c4e2b08d51", oldID); err != nil {
		t.Fatal(err)
	}
	got := namesOf(t, newStore(t, fs))
	if want := []string{"marked.stale-3f9a17c4e2b08d51", "old.quarantine", "serving", "unmarked.stale-3f9a17c4e2b08d51"}; !slices.Equal(got, want) {
		t.Errorf("left %v", got)
	}
	for _, refused := range []vfs.OpKind{vfs.OpRemove, vfs.OpStat} {
		mem := memory(t)
		newStore(t, mem)
		if err := mem.MkdirAll("data/topics/empty.stale-3f9a17c4e2b08d51"); err != nil {
			t.Fatal(err)
		}
		bad := vfs.NewFault(mem, func(op vfs.Op) (f vfs.Fault) {
			if op.Kind == refused && path.Base(op.Path) == "empty.stale-3f9a17c4e2b08d51" {
				f.Err = errors.New("refused")
			}
			return f
		})
		if _, err := New(bad, "data"); err != nil {
			t.Errorf("%s refused: the node does not start: %v", refused, err)
		}
	}
}

func TestClassify(t *testing.T) {
	for name, want := range map[string]Entry{
		"orders":                              {Topic: "orders", Kind: Serving},
		"orders.stale-3f9a17c4e2b08d51":       {Topic: "orders", Kind: SetAside},
		"a.stale-b.stale-3f9a17c4e2b08d51-12": {Topic: "a.stale-b", Kind: SetAside},
		"orders.quarantine":                   {Topic: "orders", Kind: Superseded},
		"a b":                                 {Kind: Foreign},
		".stale-3f9a17c4e2b08d51":             {Kind: Foreign},
	} {
		want.Name = name
		if got := classify(name); got != want {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
}

func TestPagesAreTheList(t *testing.T) {
	fs := memory(t)
	s := newStore(t, fs)
	for _, name := range []string{"a", "b", "c", "d"} {
		mustOpen(t, s, Request{Topic: name, Incarnation: oldID})
	}
	if err := fs.MkdirAll("data/staging/e@3f9a17c4e2b08d51/p00000"); err != nil {
		t.Fatal(err)
	}
	list, err := s.List()
	if err != nil || len(list) != 5 || list[0].Key() != "staging/e@3f9a17c4e2b08d51" || list[4].Key() != "topics/d" {
		t.Fatalf("%+v, %v", list, err)
	}
	for limit := 1; limit <= 6; limit++ {
		var got []Entry
		for after, more := "", true; more; {
			var page []Entry
			page, more, err = s.Page(after, limit, func(e Entry, err error) { t.Errorf("%s: %v", e.Name, err) })
			if err != nil || len(page) > limit || more && len(page) < limit {
				t.Fatalf("limit %d after %q: %+v, %v", limit, after, page, err)
			}
			got, after = append(got, page...), page[len(page)-1].Key()
		}
		if !slices.Equal(got, list) {
			t.Errorf("limit %d: %+v", limit, got)
		}
	}
}

// One directory that cannot be read fails a list, and hides nothing in a page.
func TestUnreadableEntry(t *testing.T) {
	mem := memory(t)
	fail := false
	s := newStore(t, vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
		if fail && op.Kind == vfs.OpOpen && op.Path == "data/topics/b/incarnation" {
			return vfs.Fault{Err: syscall.EIO}
		}
		return vfs.Fault{}
	}))
	for _, name := range []string{"a", "b", "c"} {
		mustOpen(t, s, Request{Topic: name, Incarnation: oldID})
	}
	fail = true
	if _, err := s.List(); !errors.Is(err, syscall.EIO) {
		t.Errorf("list: %v", err)
	}
	var unread []string
	page, more, err := s.Page("", 10, func(e Entry, err error) {
		if errors.Is(err, syscall.EIO) {
			unread = append(unread, e.Name)
		}
	})
	want := []Entry{{"a", "a", Serving, oldID}, {"b", "b", Serving, 0}, {"c", "c", Serving, oldID}}
	if err != nil || more || !slices.Equal(page, want) || !slices.Equal(unread, []string{"b"}) {
		t.Errorf("%+v, %t, %v, unread %v", page, more, err, unread)
	}
}

func TestParsePartition(t *testing.T) {
	for name, want := range map[string]int32{
		"p00003": 3, "p01023": 1023, "p123456": 123456, "p00000": 0,
		"p3": -1, "p-0001": -1, "q00003": -1, "p000003": -1, "p": -1, "": -1, "p99999999999": -1, "p+0003": -1,
	} {
		got, ok := ParsePartition(name)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %t", name, got, ok)
		}
	}
}
