package metaapi

import (
	"fmt"
	"reflect"
	"testing"
)

func TestWalk(t *testing.T) {
	const a, b, c, d = "a:1", "b:1", "c:1", "d:1"
	for name, tc := range map[string]struct {
		candidates []string
		hints      map[string]string // what each answers
		want       []string
	}{
		"in order, each once":           {[]string{a, "", b, a}, nil, []string{a, b}},
		"a hint is asked at once":       {[]string{a, b}, map[string]string{a: c}, []string{a, c, b}},
		"hint to itself":                {[]string{a, b}, map[string]string{a: a}, []string{a, b}},
		"hints in a circle":             {[]string{a, b}, map[string]string{a: b, b: a}, []string{a, b}},
		"hint to a later candidate":     {[]string{a, b, c}, map[string]string{a: c}, []string{a, c, b}},
		"hint without a port":           {[]string{a}, map[string]string{a: "c"}, []string{a}},
		"hint with port 0":              {[]string{a}, map[string]string{a: "c:0"}, []string{a}},
		"the leader joined later":       {[]string{a}, map[string]string{a: d}, []string{a, d}},
		"nobody":                        {nil, nil, nil},
		"four hints in a row, no fifth": {[]string{a, b}, map[string]string{a: "h1:1", "h1:1": "h2:1", "h2:1": "h3:1", "h3:1": "h4:1", "h4:1": "h5:1"}, []string{a, "h1:1", "h2:1", "h3:1", "h4:1", b}},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWalk(tc.candidates...)
			var got []string
			for addr := w.Next(); addr != ""; addr = w.Next() {
				got = append(got, addr)
				w.Hint(tc.hints[addr])
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("asked %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWalkEnds(t *testing.T) {
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("h%d:1", i))
	}
	w, n := NewWalk(many...), 0
	for w.Next() != "" {
		n++
	}
	if n != maxWalk {
		t.Errorf("asked %d nodes", n)
	}
}

func TestMemory(t *testing.T) {
	var m Memory
	for i := range 12 {
		m = m.Remember(fmt.Sprintf("h%d:1", i))
	}
	m = m.Remember("h7:1").Remember("bad").Remember("")
	want := Memory{"h7:1", "h11:1", "h10:1", "h9:1", "h8:1", "h6:1", "h5:1", "h4:1"}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("remembers %v, want %v", m, want)
	}
}
