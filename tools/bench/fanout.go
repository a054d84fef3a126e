package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

// fanoutRate is the low rate at which the added latency of a plain child is taken.
const fanoutRate = 100.0

// fanoutPhases measures copies per second to 1, 4 and 16 children, from the first
// produce to the last copy, and how much later than in its parent a message is
// committed in a plain child at a low rate.
func (b *bench) fanoutPhases(add func(string, func() result)) error {
	name := b.topic
	for _, n := range []int{1, 4, 16} {
		b.topic = name
		if err := b.create(fmt.Sprintf("-f%d", n)); err != nil {
			return err
		}
		children, err := b.addChildren(n, 0)
		if err != nil {
			return err
		}
		if n == 1 {
			add("fan-out to 1 child, added latency", func() result { return b.addedLatency(children[0], 0) })
		}
		add(fmt.Sprintf("fan-out to %d children, copies", n), func() result { return b.copies(n) })
		if err := b.removeFamily(children); err != nil {
			return err
		}
	}
	return nil
}

// addChildren makes children with a delay; 0: plain ones.
func (b *bench) addChildren(n int, delay time.Duration) (names []string, err error) {
	for i := range n {
		child := fmt.Sprintf("%s-c%d", b.topic, i)
		body := fmt.Sprintf(`{"name":%q,"parent":%q,"delay_ms":%d}`, child, b.topic, delay.Milliseconds())
		if err := b.targets[0].newCall().expect(201, "POST", "/v1/topics", "application/json", []byte(body)); err != nil {
			return nil, err
		}
		names = append(names, child)
	}
	return names, nil
}

// removeFamily deletes the topic with its children.
func (b *bench) removeFamily(children []string) error {
	for _, name := range append(children, b.topic) {
		if err := b.targets[0].newCall().expect(204, "DELETE", "/v1/topics/"+name, "", nil); err != nil {
			return err
		}
	}
	return nil
}

// copies produces batches and waits until every child has them.
func (b *bench) copies(n int) result {
	begin := time.Now()
	r := drive("", b.length, b.workers(b.connections/4, b.produceBatch))
	if err := b.copied(r.Messages); err != nil && r.FirstError == "" {
		r.FirstError = err.Error()
	}
	r.Messages *= int64(n)
	r.Seconds = time.Since(begin).Seconds()
	r.PerSecond = float64(r.Messages) / r.Seconds
	return r
}

// copied waits until the parent has committed what was sent, and its children have it.
func (b *bench) copied(sent int64) error {
	if err := b.drained(sent); err != nil {
		return err
	}
	c := b.targets[0].newCall()
	var doc struct {
		Children []struct {
			Lag     int64 `json:"lag_messages"`
			Partial bool  `json:"partial"`
		} `json:"children"`
	}
	for deadline := time.Now().Add(drainLimit); time.Now().Before(deadline); {
		status, answer, err := c.do("GET", b.path("/children"), "", "", nil)
		if err != nil || status != 200 {
			return fmt.Errorf("list children: status %d: %w", status, err)
		}
		if err := json.Unmarshal(answer, &doc); err != nil {
			return fmt.Errorf("list children: %w", err)
		}
		behind := false
		for _, ch := range doc.Children {
			behind = behind || ch.Partial || ch.Lag > 0
		}
		if !behind {
			return nil
		}
		<-time.After(5 * time.Millisecond)
	}
	return fmt.Errorf("children are behind after %s", drainLimit)
}

// addedLatency compares when messages were committed in parent and child: how much
// later than its delay.
func (b *bench) addedLatency(child string, delay time.Duration) result {
	payload, c, number := append([]byte(nil), b.payload...), b.targets[0].newCall(), uint64(0)
	tick := time.NewTicker(time.Duration(float64(time.Second) / fanoutRate))
	defer tick.Stop()
	r := drive("", b.length, []step{func() (int, time.Duration, error) {
		<-tick.C
		number++
		binary.BigEndian.PutUint64(payload, number)
		return 1, 0, c.expect(202, "POST", b.path("/produce"), "application/octet-stream", payload)
	}})
	if err := b.copied(r.Messages); err != nil && r.FirstError == "" {
		r.FirstError = err.Error()
	}
	parent, err := b.stamps(b.topic)
	if err == nil {
		var there map[uint64]int64
		there, err = b.stamps(child)
		var all []time.Duration
		for n, at := range there {
			all = append(all, time.Duration(at-parent[n])*time.Millisecond-delay)
		}
		r.quantiles(all)
	}
	if err != nil && r.FirstError == "" {
		r.FirstError = err.Error()
	}
	return r
}

// stamps is when each message of a topic was committed, in Unix ms by its number.
func (b *bench) stamps(name string) (map[uint64]int64, error) {
	out, c := map[uint64]int64{}, b.targets[0].newCall()
	for p := range partitions {
		for next := int64(0); ; {
			status, answer, err := c.do("GET", fmt.Sprintf("/v1/topics/%s/messages?partition=%d&offset=%d&limit=1000", name, p, next), "", batch.ContentType, nil)
			if err != nil || status != 200 {
				return nil, fmt.Errorf("replay %s: status %d: %w", name, status, err)
			}
			page, err := batch.Decode(answer)
			if err != nil {
				return nil, fmt.Errorf("replay %s: %w", name, err)
			}
			for i := range page.Records {
				rec := &page.Records[i]
				out[binary.BigEndian.Uint64(rec.Payload)] = int64(rec.CommittedMS)
			}
			if len(page.Records) == 0 {
				break
			}
			next = int64(page.Records[len(page.Records)-1].Offset) + 1
		}
	}
	return out, nil
}
