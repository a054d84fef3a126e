package main

import (
	"strings"
	"testing"
)

func TestDecommissionCommand(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	out, _, exit := sh.run("", "cluster", "decommission", "storage-1", "--dry-run")
	if exit != 1 {
		t.Errorf("a dry run that would be refused: exit %d", exit)
	}
	contains(t, out, "leads 4 partitions", "below_replication_factor", "1 topics: pay")
	contains(t, sh.must("", "cluster", "decommission", "storage-1", "--cancel"), "it stays")
	contains(t, sh.must("", "cluster", "decommission", "storage-1", "--accept-data-loss"), "it drains", "3 partitions and 0 messages left; no_receivers", "it was removed")
	contains(t, sh.must("", "cluster", "decommission", "gateway-1"), "ask another one")
	out, _, exit = sh.run("", "cluster", "decommission", "voter-1")
	if exit != 1 {
		t.Errorf("refused: exit %d", exit)
	}
	contains(t, out, "below_min_voters", "2 voters would stay")
	contains(t, sh.must("", "topic", "reset", "orders", "2", "--accept-data-loss"), "orders/2")
	contains(t, strings.Join(b.calls, "\n"), "POST /v1/cluster/members/storage-1/decommission?accept_data_loss=true",
		"DELETE /v1/cluster/members/storage-1/decommission", "POST /v1/topics/orders/partitions/2/reset?accept_data_loss=true")
	for _, args := range [][]string{{"cluster", "decommission"}, {"cluster", "decommission", "a", "--cancel", "--dry-run"}, {"topic", "reset", "orders", "2"}, {"topic", "reset", "orders", "x", "--accept-data-loss"}} {
		if _, _, exit := sh.run("", args...); exit != 2 {
			t.Errorf("%v: exit %d", args, exit)
		}
	}
}
