package main

import (
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/client"
)

// A topic of several copies is drawn copy by copy; what nobody could tell is a dash.
func TestReplicasAreDrawn(t *testing.T) {
	leader, end, lag, yes, no := "s1", uint64(120), uint64(7), true, false
	at := end - lag
	none := uint64(0)
	topic := client.TopicDetails{PartitionDetails: []client.PartitionDetails{
		{Index: 0, Leader: &leader, Replicas: []client.Replica{{ID: "s1", LogEnd: &end, Lag: &none, InSync: &yes}, {ID: "s2", LogEnd: &at, Lag: &lag, InSync: &no}}},
		{Index: 1, Replicas: []client.Replica{{ID: "s3"}}},
	}}
	var b strings.Builder
	printReplicas(&b, topic)
	if b.Len() > 0 {
		t.Fatalf("one copy: %q", b.String())
	}
	topic.ReplicationFactor = 3
	printReplicas(&b, topic)
	want := "\nPARTITION\tREPLICA\tROLE\tLOG END\tLAG\tSTATE\n0\ts1\tleader\t120\t0\tin sync\n0\ts2\tfollower\t113\t7\tbehind\n1\ts3\tfollower\t-\t-\t-\n"
	if b.String() != want {
		t.Fatalf("%q, want %q", b.String(), want)
	}
}
