package main

import (
	"strings"
	"testing"
)

func TestMovesCommand(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	contains(t, sh.must("", "cluster", "moves"), "1 running of at most 8, 3 waiting", "orders/3", "storage-4", "copying",
		"[##########----------]  50%", "50.0 MiB/s", "2026-11-29T20:04:05.12Z")
	if out := sh.must("", "cluster", "moves", "--json"); strings.Count(out, "\n") != 1 {
		t.Errorf("as JSON: %q", out)
	}
	contains(t, sh.must("", "cluster", "moves", "start", "orders", "3", "storage-1", "storage-4"), "orders/3", "copying")
	contains(t, sh.must("", "cluster", "moves", "abort", "orders", "3"), "orders/3")
	contains(t, strings.Join(b.calls, "\n"), "POST /v1/cluster/moves", "DELETE /v1/cluster/moves/orders/3?started_at=2026-11-29T20%3A04%3A05.12Z")
	sh.must("", "cluster", "moves", "abort", "orders", "3", "--started-at", "2026-11-29T19:00:00Z")
	contains(t, strings.Join(b.calls, "\n"), "DELETE /v1/cluster/moves/orders/3?started_at=2026-11-29T19%3A00%3A00Z")
	asked := len(b.calls)
	if _, errs, exit := sh.run("", "cluster", "moves", "abort", "orders", "4"); exit != 1 || !strings.Contains(errs, "orders/4 is not moving") {
		t.Errorf("what does not move: exit %d, %s", exit, errs)
	}
	if len(b.calls) != asked+1 {
		t.Errorf("more than the listing was asked for: %v", b.calls[asked:])
	}
	for _, args := range [][]string{{"start", "orders", "3", "storage-1"}, {"start", "orders", "x", "a", "b"}, {"abort", "orders", "-1"}, {"abort", "orders", "3", "--started-at", "noon"}, {"abort"}} {
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
