package topicdir

import (
	"errors"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// orders is a fresh data directory with one open topic of that name.
func orders(t *testing.T) (*vfs.Mem, *Store, Opened) {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("data"); err != nil {
		t.Fatal(err)
	}
	s, err := New(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Open(Request{Topic: "orders", Incarnation: 5})
	if err != nil {
		t.Fatal(err)
	}
	return fs, s, out
}

// A copy leaves the partition's name only as the one that was judged, within the
// incarnation that was judged, and its siblings stay.
func TestRetire(t *testing.T) {
	fs, s, out := orders(t)
	put := func(p int32) string {
		dir := PartitionDir(out.Path, p)
		if err := fs.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(dir + "/x.log")
		if err == nil {
			_, err = f.WriteAt([]byte("hello"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for p := range int32(3) {
		put(p)
	}
	names := func() string {
		in, err := fs.ReadDir(out.Path)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range in {
			all = append(all, e.Name())
		}
		return strings.Join(all, " ")
	}
	is := func(v Judged) func(string) (Judged, error) {
		return func(string) (Judged, error) { return v, nil }
	}
	gone := is(Judged{Copy: 7, Remove: true})
	held := errors.New("held")
	for name, c := range map[string]struct {
		r    Retiring
		want error
	}{
		"another life":   {Retiring{Topic: "orders", Incarnation: 6, Judge: gone}, ErrChanged},
		"no life":        {Retiring{Topic: "orders", Judge: gone}, ErrChanged},
		"not there":      {Retiring{Topic: "orders", Incarnation: 5, Partition: 9, Judge: gone}, ErrAbsent},
		"held meanwhile": {Retiring{Topic: "orders", Incarnation: 5, Judge: func(string) (Judged, error) { return Judged{}, held }}, held},
	} {
		if _, err := s.Retire(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if got := names(); got != "incarnation p00000 p00001 p00002" {
		t.Fatalf("after refusals: %s", got)
	}
	bytes, err := s.Retire(Retiring{Topic: "orders", Incarnation: 5, Judge: gone})
	if err != nil || bytes != 5 {
		t.Fatalf("%d bytes, %v", bytes, err)
	}
	note := Note{SinceMS: 12, Reason: "it has more"}
	if _, err := s.Retire(Retiring{Topic: "orders", Incarnation: 5, Partition: 1, Judge: is(Judged{Copy: 7, Note: note})}); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "incarnation p00001.quarantine-0000000000000007 p00002" {
		t.Fatalf("in the end: %s", got)
	}
	if got, err := readNote(fs, PartitionDir(out.Path, 1)+".quarantine-0000000000000007"); err != nil || got != note {
		t.Fatalf("noted %+v, %v", got, err)
	}
	if _, serves := ParsePartition("p00001.quarantine-0000000000000007"); serves {
		t.Fatal("a quarantine would be opened")
	}
}

// Copies of one partition that have the same id, or none, do not stand in each other's way:
// each is set aside, or removed, under a name of its own.
func TestRetireUnderATakenName(t *testing.T) {
	fs, s, out := orders(t)
	retire := func(v Judged) (int64, error) {
		dir := PartitionDir(out.Path, 1)
		if err := fs.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(dir + "/x.log")
		if err == nil {
			_, err = f.WriteAt([]byte("hello"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s.Retire(Retiring{Topic: "orders", Incarnation: 5, Partition: 1, Judge: func(string) (Judged, error) { return v, nil }})
	}
	for i := range 3 {
		if _, err := retire(Judged{Note: Note{SinceMS: int64(i + 1), Reason: "it has more"}}); err != nil {
			t.Fatalf("number %d stays where it is: %v", i, err)
		}
	}
	list, err := s.Aside(Entry{Kind: Serving, Topic: "orders", Name: "orders", Marker: 5})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, c := range list {
		if c.Partition != 1 || c.Copy != 0 || c.Leaving || c.Note.SinceMS != int64(i+1) {
			t.Errorf("number %d is %+v", i, c)
		}
	}
	left := PartitionDir(out.Path, 1) + ".superseded-0000000000000000"
	if err := fs.MkdirAll(left + "/x"); err != nil { // of a removal that was interrupted
		t.Fatal(err)
	}
	if bytes, err := retire(Judged{Remove: true}); err != nil || bytes != 5 {
		t.Fatalf("%d bytes, %v", bytes, err)
	}
	if list, err = s.Aside(Entry{Kind: Serving, Topic: "orders", Name: "orders", Marker: 5}); err != nil || len(list) != 3 {
		t.Fatalf("then %+v, %v", list, err)
	}
}

// Names of copies that are out of their partition's name, and of nothing else.
func TestParseAside(t *testing.T) {
	for name, want := range map[string]AsideCopy{
		"p00001.quarantine-0000000000000007":    {Partition: 1, Copy: 7},
		"p00001.quarantine-0000000000000000":    {Partition: 1},
		"p00001.quarantine-0000000000000000-12": {Partition: 1},
		"p00003.superseded-00000000000000ff":    {Partition: 3, Copy: 0xff, Leaving: true},
	} {
		want.Name = name
		if got, ok := ParseAside(name); !ok || got != want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"p00001", "incarnation", "p1.quarantine-0000000000000007", "p00001.quarantine-7", "p00001.quarantine-", "p00001.quarantine-0000000000000007-", "p00001.quarantine-0000000000000007-0", "p00001.quarantine-0000000000000007-01", "p00001.quarantine-0000000000000007-1-1", "x.superseded-0000000000000007"} {
		if got, ok := ParseAside(name); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
