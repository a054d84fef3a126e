package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// withLone is a cluster of s1 with two recorded lone copies and one that is not recorded
// yet, and s2 with one recorded.
func withLone() *testkit.Meta {
	m := testkit.NewMeta()
	for i, id := range []string{"s1", "s2"} {
		m.PutMember(topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: topic.ID64(i + 1)})
	}
	m.PutMember(topic.Member{ID: "v1", Role: topic.RoleVoter, Status: topic.StatusAlive, DiskID: 9})
	var list []topic.Assignment
	for p, r := range []topic.Replica{{Node: "s1", DiskID: 1, CopyID: 5}, {Node: "s1", DiskID: 1, CopyID: 6}, {Node: "s1", DiskID: 1}, {Node: "s2", DiskID: 2, CopyID: 7}} {
		list = append(list, topic.Assignment{Ref: lone(p), Leader: r.Node, Replicas: []topic.Replica{r}})
	}
	m.PutTopic(topic.Topic{Name: "orders", Incarnation: 9}, list)
	return m
}

func lone(p int) topic.Ref { return topic.Ref{Topic: "orders", Incarnation: 9, Partition: int32(p)} }

// says is a heartbeat by which count copies are missed, some by name.
func says(disk topic.ID64, count int, named ...int) missed {
	lost := &metaapi.LostCopies{Count: count}
	for _, p := range named {
		lost.Named = append(lost.Named, metaapi.LostCopy{Ref: lone(p), SinceMS: 5})
	}
	return missedBy(&metaapi.HeartbeatRequest{DiskID: disk, Lost: lost})
}

// TestLostCopiesAreWhatNodesSayAndTheRecordsAllow: "node: count named...", and of whom
// nothing is known.
func TestLostCopiesAreWhatNodesSayAndTheRecordsAllow(t *testing.T) {
	fine := says(2, 0)
	for name, c := range map[string]struct {
		heard map[string]missed
		want  string
	}{
		"nobody was heard yet":              {nil, "unknown [s1 s2]"},
		"all are there":                     {map[string]missed{"s1": says(1, 0), "s2": fine}, "unknown []"},
		"one is missed":                     {map[string]missed{"s1": says(1, 1, 1), "s2": fine}, "s1: 1 [1] unknown []"},
		"another node is new to the leader": {map[string]missed{"s1": says(1, 1, 0)}, "s1: 1 [0] unknown [s2]"},
		"an older node does not tell":       {map[string]missed{"s1": missedBy(&metaapi.HeartbeatRequest{DiskID: 1}), "s2": fine}, "unknown []"},
		"it was said of an earlier disk":    {map[string]missed{"s1": says(8, 1, 0), "s2": fine}, "unknown [s1]"},
		"not recorded, or on another node":  {map[string]missed{"s1": says(1, 2, 2, 3), "s2": fine}, "unknown []"},
		"deleted meanwhile":                 {map[string]missed{"s1": says(1, 1, 44), "s2": fine}, "unknown []"},
		"more than it names":                {map[string]missed{"s1": says(1, 2, 0), "s2": fine}, "s1: 2 [0] unknown []"},
		"more than it can have":             {map[string]missed{"s1": says(1, 1<<40), "s2": says(2, -1)}, "s1: 2 [] unknown []"},
	} {
		res, err := lostCopies(withLone(), c.heard)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, n := range res.Nodes {
			named := []int32{}
			for _, c := range n.Named {
				named = append(named, c.Partition)
			}
			got += fmt.Sprintf("%s: %d %v ", n.Node, n.Count, named)
		}
		if got += fmt.Sprintf("unknown %v", res.Unknown); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if m := says(1, 100, make([]int, 100)...); len(m.Named) != metaapi.MaxLostNamed {
		t.Errorf("a heartbeat may name %d", len(m.Named))
	}
}

// TestTheMetricCountsLostCopies, and shows no 0 as long as some node was not heard.
func TestTheMetricCountsLostCopies(t *testing.T) {
	v, heard := withLone(), map[string]missed{}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newPartitionGauges(v, func() (map[string]missed, bool) { return heard, true }))
	shows := func(want string) {
		t.Helper()
		text := ""
		if want != "" {
			text = "# HELP narad_partitions_lost Partitions without a majority of copies on disks of record, or whose only copy its node misses; shown by the leading voter.\n" +
				"# TYPE narad_partitions_lost gauge\nnarad_partitions_lost " + want + "\n"
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(text), "narad_partitions_lost"); err != nil {
			t.Error(err)
		}
	}
	shows("")
	heard["s2"] = says(2, 1, 3)
	shows("1")
	heard["s1"] = says(1, 2, 0, 1)
	shows("3")
	heard["s1"], heard["s2"] = says(1, 0), says(2, 0)
	shows("0")
}
