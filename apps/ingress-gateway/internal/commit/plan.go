package commit

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/accept"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// maxGroupBytes bounds what one request may have for one partition (api.md, section
// 4), and what one call carries: below the bound of a commit's body.
const maxGroupBytes = 8 << 20

// group is messages of a request that go to one partition together.
type group struct {
	partition int32
	free      bool  // none of them has a key or a pin: they may go anywhere
	messages  []int // indexes, ascending
	size      int   // encoded bytes
}

// take adds a message, if there is room.
func (g *group) take(i, size int) bool {
	if g.size+size > maxGroupBytes {
		return false
	}
	g.messages = append(g.messages, i)
	g.size += size
	return true
}

// plan shares messages out: one group for each partition that a key or a pin means,
// and one for the free ones, at a partition that no other group has if there is one.
// They are never put into a group that cannot be moved: they would fail with it.
func plan(t *topic.Topic, msgs []api.Produced, place func() int32) ([]group, error) {
	var groups []group
	at := make(map[int32]int) // partition -> index of groups
	var loose []int
	for i := range msgs {
		if err := accept.Check(t, &msgs[i]); err != nil {
			return nil, err
		}
		p, fixed := accept.Fixed(t, &msgs[i])
		if !fixed && t.Partitions > 1 {
			loose = append(loose, i)
			continue
		}
		g, ok := at[p]
		if !ok {
			g = len(groups)
			at[p] = g
			groups = append(groups, group{partition: p})
		}
		if !groups[g].take(i, record.BodySize(&msgs[i].Message)) {
			return nil, tooLarge(p)
		}
	}
	for from := len(groups); len(loose) > 0; {
		if len(groups)-from == t.Partitions {
			return nil, tooLarge(groups[from].partition)
		}
		g := group{partition: place(), free: true}
		for tries := 1; tries < t.Partitions && hasPlace(groups, g.partition); tries++ {
			g.partition = place()
		}
		for len(loose) > 0 && g.take(loose[0], record.BodySize(&msgs[loose[0]].Message)) {
			loose = loose[1:]
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func hasPlace(groups []group, p int32) bool {
	return slices.ContainsFunc(groups, func(g group) bool { return g.partition == p })
}

func tooLarge(partition int32) *problem.Problem {
	return problem.New(problem.BatchTooLarge, "with ack=committed at most %d bytes go to one partition, and there are more for %d", maxGroupBytes, partition)
}

// producerStream names a client's producer at one partition of one life of a topic:
// the first 16 bytes of the SHA-256 of
//
//	u64 incarnation, u32 partition (both big-endian), the producer's id
//
// as stream id, a and b. 128 bits, because whoever met another producer's stream would
// be told of its numbers; and all three are in it, because message ids show the stream
// id and the number, and must differ between partitions.
func producerStream(ref topic.Ref, id string) record.Stream {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 12+len(id)), uint64(ref.Incarnation))
	b = binary.BigEndian.AppendUint32(b, uint32(ref.Partition))
	sum := sha256.Sum256(append(b, id...))
	return record.Stream{
		Kind: record.StreamClient, ID: topic.ID64(binary.BigEndian.Uint64(sum[:])),
		A: binary.BigEndian.Uint32(sum[8:]), B: binary.BigEndian.Uint32(sum[12:]),
	}
}
