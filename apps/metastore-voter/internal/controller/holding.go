package controller

import (
	"slices"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// holding answers a question about a partition; what cannot be read is not known.
func holding(r metastate.Reader, q metaapi.Question) metaapi.Holding {
	h := metaapi.Holding{Nodes: []string{}}
	a, err := metastate.PartitionOf(r, topic.Ref{Topic: q.Topic, Incarnation: q.ID, Partition: q.Partition})
	if err != nil || a == nil {
		return h
	}
	h.Known, h.Leader, h.LeaderEpoch = true, a.Leader, a.LeaderEpoch
	for _, rep := range slices.Concat(a.Replicas, a.Observers) {
		h.Nodes = append(h.Nodes, rep.Node)
	}
	return h
}
