package main

import (
	"strings"
	"testing"
)

func TestMovesCommand(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	contains(t, sh.must("", "cluster", "moves"), "1 running of at most 8, 3 waiting", "orders/3", "storage-4", "copying",
		"[##########----------]  50%", "50.0 MiB/s")
	if out := sh.must("", "cluster", "moves", "--json"); strings.Count(out, "\n") != 1 {
		t.Errorf("as JSON: %q", out)
	}
	contains(t, sh.must("", "cluster", "moves", "start", "orders", "3", "storage-1", "storage-4"), "orders/3", "copying")
	contains(t, sh.must("", "cluster", "moves", "abort", "orders", "3"), "orders/3")
	contains(t, strings.Join(b.calls, "\n"), "POST /v1/cluster/moves", "DELETE /v1/cluster/moves/orders/3")
	for _, args := range [][]string{{"start", "orders", "3", "storage-1"}, {"start", "orders", "x", "a", "b"}, {"abort", "orders", "-1"}, {"abort"}} {
		if _, _, exit := sh.run("", append([]string{"cluster", "moves"}, args...)...); exit != 2 {
			t.Errorf("%v: exit %d", args, exit)
		}
	}
}

func TestProgressBar(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		want        string
	}{
		{0, 0, "[--------------------]   ?"},
		{0, 10, "[--------------------]   0%"},
		{10, 10, "[####################] 100%"},
		{20, 10, "[####################] 100%"},
		{-1, 10, "[--------------------]   0%"},
		{1 << 60, 1 << 62, "[#####---------------]  25%"},
	} {
		if got := progress(c.done, c.total); got != c.want {
			t.Errorf("%d of %d: %q, want %q", c.done, c.total, got, c.want)
		}
	}
}
