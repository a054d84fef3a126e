package release

import (
	"slices"
	"strings"
	"testing"
)

func TestHas(t *testing.T) {
	for _, c := range []struct {
		own, since string
		want       bool
	}{
		{"0.1.0", "0.1.0", true},
		{"0.1.0", "0.2.0", false},
		{"0.2.0", "0.1.0", true},
		{"0.2.0", "0.2.0", true},
		{"0.2.0", "0.9.0", false},
		{"0.9.0", "0.8.0", false},
	} {
		if got := Has(c.own, c.since); got != c.want {
			t.Errorf("has %s what came with %s: %t", c.own, c.since, got)
		}
	}
	if all := order(); Name != all[len(all)-1] {
		t.Errorf("the release is called %s and the newest of the order is %s", Name, all[len(all)-1])
	}
}

// TestFields: each row stands once, names a later release that is known, and a
// member of the request object itself.
func TestFields(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Fields() {
		key := f.Operation + " " + f.Name
		switch {
		case seen[key]:
			t.Errorf("%s stands twice", key)
		case f.Since == First || !Has(Name, f.Since):
			t.Errorf("%s is since %s: not a release after the first one", key, f.Since)
		case f.Operation == "" || f.Name == "" || strings.Contains(f.Name, "."):
			t.Errorf("%q cannot be left out of a request", key)
		}
		seen[key] = true
		if !slices.Contains(Droppable(f.Operation), f.Name) || !slices.Contains(Lacks(First, f.Operation), f.Name) || len(Lacks(Name, f.Operation)) > 0 {
			t.Errorf("%s: droppable %v, the first release lacks %v, this one %v",
				key, Droppable(f.Operation), Lacks(First, f.Operation), Lacks(Name, f.Operation))
		}
	}
}
