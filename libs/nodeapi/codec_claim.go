package nodeapi

import (
	"encoding/binary"
	"math"

	"github.com/narad-mq/narad/libs/rpc/wire"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// maxRequestTakes bounds the deliveries of one answer: with the smallest
	// records the bound of bytes ends it far earlier.
	maxRequestTakes = 1 << 20

	// The fewest bytes of a thing on the wire, so that a count cannot ask for
	// more memory than a small multiple of its body.
	minClaim     = 12
	minPartition = 13
	minTaker     = 3
	minAnswer    = 2
	minDelivery  = 22
)

func appendClaimRequest(b []byte, req *ClaimRequest) []byte {
	b = wire.AppendString(append(b, version), req.Gateway)
	b = binary.AppendUvarint(b, uint64(len(req.Claims)))
	for i := range req.Claims {
		c := &req.Claims[i]
		b = wire.AppendString(b, c.Topic)
		b = binary.BigEndian.AppendUint64(b, uint64(c.Incarnation))
		arm := byte(0)
		if c.Arm {
			arm = 1
		}
		b = binary.AppendUvarint(append(b, arm), uint64(len(c.Partitions)))
		for _, p := range c.Partitions {
			b = binary.AppendUvarint(b, uint64(p.Partition))
			b = binary.BigEndian.AppendUint64(b, uint64(p.DiskID))
			b = binary.BigEndian.AppendUint32(b, uint32(p.Epoch))
		}
		b = binary.AppendUvarint(b, uint64(len(c.Takers)))
		for _, t := range c.Takers {
			b = binary.AppendUvarint(b, uint64(t.Max))
			b = binary.AppendUvarint(b, uint64(t.MaxBytes))
			b = binary.AppendUvarint(b, uint64(t.VisibilityMS))
		}
	}
	return b
}

func decodeClaimRequest(b []byte) (*ClaimRequest, error) {
	r := open(b)
	req := &ClaimRequest{Gateway: r.String(maxNodeID)}
	if n := r.Count(MaxClaims, minClaim); n > 0 {
		req.Claims = make([]Claim, n)
	}
	for i := range req.Claims {
		if r.Bad() {
			break
		}
		readClaim(&r, &req.Claims[i])
	}
	return req, done(&r, "claim request")
}

func readClaim(r *wire.Reader, c *Claim) {
	c.Topic = r.String(topic.MaxNameLength)
	c.Incarnation = topic.Incarnation(r.U64())
	arm := r.U8()
	if arm > 1 {
		r.Fail()
	}
	c.Arm = arm == 1
	if n := r.Count(topic.MaxPartitions, minPartition); n > 0 {
		c.Partitions = make([]ClaimPartition, n)
	}
	for i := range c.Partitions {
		c.Partitions[i] = ClaimPartition{Partition: int32(r.Int()), DiskID: topic.ID64(r.U64()), Epoch: topic.Epoch(r.U32())}
	}
	if n := r.Count(MaxTakers, minTaker); n > 0 {
		c.Takers = make([]Taker, n)
	}
	for i := range c.Takers {
		c.Takers[i] = Taker{Max: int(r.Uvarint(maxTake)), MaxBytes: r.Int(), VisibilityMS: r.Int64()}
	}
}

func appendClaimResult(b []byte, res *ClaimResult) []byte {
	ids, total := 0, 0
	each(res, func(d *Delivery) { ids += len(d.ID); total++ })
	b = binary.AppendUvarint(append(b, version), uint64(ids))
	each(res, func(d *Delivery) { b = append(b, d.ID...) })
	b = binary.AppendUvarint(b, uint64(total))
	b = binary.AppendUvarint(b, uint64(len(res.Claims)))
	for i := range res.Claims {
		a := &res.Claims[i]
		b = binary.AppendUvarint(b, uint64(len(a.Partitions)))
		for _, s := range a.Partitions {
			b = append(b, byte(s))
		}
		b = binary.AppendUvarint(b, uint64(len(a.Deliveries)))
		for _, list := range a.Deliveries {
			b = binary.AppendUvarint(b, uint64(len(list)))
			for j := range list {
				b = appendDelivery(b, &list[j])
			}
		}
	}
	return b
}

func each(res *ClaimResult, f func(*Delivery)) {
	for i := range res.Claims {
		for _, list := range res.Claims[i].Deliveries {
			for j := range list {
				f(&list[j])
			}
		}
	}
}

func appendDelivery(b []byte, d *Delivery) []byte {
	b = binary.AppendUvarint(b, uint64(d.Partition))
	b = binary.AppendUvarint(b, uint64(d.Offset))
	b = binary.BigEndian.AppendUint32(b, uint32(d.Epoch))
	b = append(b, d.Nonce[:]...)
	b = binary.AppendVarint(b, d.CommitMS)
	b = binary.AppendUvarint(b, uint64(d.DeliveryCount))
	b = binary.AppendUvarint(b, uint64(d.LeaseMS))
	b = binary.AppendUvarint(b, uint64(len(d.ID)))
	return wire.AppendBytes(b, d.Body)
}

// decodeClaimResult reads a reply; the bodies are views of b, and all
// deliveries lie in one array.
func decodeClaimResult(b []byte) (*ClaimResult, error) {
	r := open(b)
	ids := newIDs(&r)
	free := make([]Delivery, 0, r.Count(maxRequestTakes, minDelivery))
	res := &ClaimResult{}
	if n := r.Count(MaxClaims, minAnswer); n > 0 {
		res.Claims = make([]ClaimAnswer, n)
	}
	for i := range res.Claims {
		if r.Bad() {
			break
		}
		free = readAnswer(&r, &ids, &res.Claims[i], free)
	}
	if len(free) != cap(free) {
		r.Fail() // fewer deliveries than were announced
	}
	ids.done(&r)
	return res, done(&r, "claim reply")
}

func readAnswer(r *wire.Reader, ids *ids, a *ClaimAnswer, free []Delivery) []Delivery {
	if n := r.Count(topic.MaxPartitions, 1); n > 0 {
		a.Partitions = make([]ClaimStatus, n)
	}
	for i := range a.Partitions {
		a.Partitions[i] = ClaimStatus(r.U8())
		if a.Partitions[i] > ClaimGone {
			r.Fail()
		}
	}
	if n := r.Count(MaxTakers, 1); n > 0 {
		a.Deliveries = make([][]Delivery, n)
	}
	for i := range a.Deliveries {
		n := r.Count(maxTake, minDelivery)
		if n > cap(free)-len(free) {
			r.Fail()
			return free
		}
		from := len(free)
		for range n {
			free = append(free, readDelivery(r, ids))
		}
		if n > 0 {
			a.Deliveries[i] = free[from:len(free):len(free)]
		}
	}
	return free
}

func readDelivery(r *wire.Reader, ids *ids) Delivery {
	d := Delivery{Partition: int32(r.Int()), Offset: r.Int64(), Epoch: topic.Epoch(r.U32())}
	copy(d.Nonce[:], r.Raw(len(d.Nonce)))
	d.CommitMS, d.DeliveryCount, d.LeaseMS = r.Varint(), int(r.Uvarint(math.MaxInt32)), r.Int64()
	d.ID, d.Body = ids.next(r), r.Bytes(maxBody)
	return d
}
