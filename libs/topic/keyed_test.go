package topic

import "testing"

// What stands here is on disks: a change of it is a change of every topic.
func TestPartitionOfKeyGolden(t *testing.T) {
	for _, c := range []struct {
		key        string
		partitions int
		want       int32
	}{{"a", 1, 0}, {"a", 3, 2}, {"order-1", 6, 1}, {"order-2", 6, 3}, {"order-2", 1024, 877}} {
		if got := PartitionOfKey([]byte(c.key), c.partitions); got != c.want {
			t.Errorf("%q of %d: %d, want %d", c.key, c.partitions, got, c.want)
		}
	}
}
