package topic

import "github.com/cespare/xxhash/v2"

// PartitionOfKey is the partition of a message with a key: the same in a gateway
// that accepts it and in the cursor that copies it to a child. It is fixed for
// /v1: a change would part the messages of one key. partitions is 1 or more.
func PartitionOfKey(key []byte, partitions int) int32 {
	return int32(xxhash.Sum64(key) % uint64(partitions))
}
