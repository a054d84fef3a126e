package fanout

import (
	"encoding/binary"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Bucket is the child partition of a record: by its key as a produce to the child
// would choose it, and without one by its place in the parent, which is the same
// in every copy of the parent and after every restart. count is the child's
// number of partitions, 1 or more.
func Bucket(key []byte, parentPartition int32, offset int64, count int) int32 {
	if len(key) > 0 {
		return topic.PartitionOfKey(key, count)
	}
	var place [12]byte
	binary.BigEndian.PutUint32(place[:], uint32(parentPartition))
	binary.BigEndian.PutUint64(place[4:], uint64(offset))
	return topic.PartitionOfKey(place[:], count)
}

// Stream names the producer stream of a cursor. A child with another partition
// count gets another one: under it the buckets are others.
func Stream(attach topic.ID64, parentPartition int32, count int) record.Stream {
	return record.Stream{Kind: record.StreamFanout, ID: attach, A: uint32(parentPartition), B: uint32(count)}
}
