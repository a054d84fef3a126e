package topicdir

import (
	"errors"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// A copy leaves the partition's name only as the one that was judged, within the
// incarnation that was judged, and its siblings stay.
func TestRetire(t *testing.T) {
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
	is := func(id topic.ID64) func(string) (topic.ID64, error) {
		return func(string) (topic.ID64, error) { return id, nil }
	}
	held := errors.New("held")
	for name, c := range map[string]struct {
		r    Retiring
		want error
	}{
		"another copy":   {Retiring{Topic: "orders", Incarnation: 5, Copy: 7, Remove: true, Identity: is(8)}, ErrChanged},
		"another life":   {Retiring{Topic: "orders", Incarnation: 6, Copy: 7, Remove: true, Identity: is(7)}, ErrChanged},
		"no copy":        {Retiring{Topic: "orders", Incarnation: 5, Remove: true, Identity: is(0)}, ErrChanged},
		"not there":      {Retiring{Topic: "orders", Incarnation: 5, Partition: 9, Copy: 7, Remove: true, Identity: is(7)}, ErrAbsent},
		"held meanwhile": {Retiring{Topic: "orders", Incarnation: 5, Copy: 7, Remove: true, Identity: func(string) (topic.ID64, error) { return 0, held }}, held},
	} {
		if _, err := s.Retire(c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if got := names(); got != "incarnation p00000 p00001 p00002" {
		t.Fatalf("after refusals: %s", got)
	}
	bytes, err := s.Retire(Retiring{Topic: "orders", Incarnation: 5, Copy: 7, Remove: true, Identity: is(7)})
	if err != nil || bytes != 5 {
		t.Fatalf("%d bytes, %v", bytes, err)
	}
	if _, err := s.Retire(Retiring{Topic: "orders", Incarnation: 5, Partition: 1, Copy: 7, Identity: is(7)}); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "incarnation p00001.quarantine-0000000000000007 p00002" {
		t.Fatalf("in the end: %s", got)
	}
	if _, serves := ParsePartition("p00001.quarantine-0000000000000007"); serves {
		t.Fatal("a quarantine would be opened")
	}
}
