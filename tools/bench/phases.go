package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

// Sizes of the phases.
const (
	batchSize    = 100
	partitions   = 6
	endToEnd     = 32 // producers, and as many consumers
	maxBacklog   = 2_000_000
	inFlightCap  = 100_000
	halfRateTick = 4 * time.Millisecond
)

// bench is one run against one cluster.
type bench struct {
	settings
	targets []target
	payload []byte
	topic   string
}

func newBench(s settings) (*bench, error) {
	b := &bench{settings: s, payload: make([]byte, s.size), topic: "bench-" + strings.ToLower(rand.Text()[:8])}
	if _, err := rand.Read(b.payload); err != nil {
		return nil, err
	}
	for _, url := range s.servers {
		b.targets = append(b.targets, newTarget(url, s.connections))
	}
	return b, nil
}

func (b *bench) path(route string) string { return "/v1/topics/" + b.topic + route }

func (b *bench) create(suffix string) error {
	b.topic += suffix
	body := fmt.Sprintf(`{"name":%q,"partitions":%d,"max_in_flight_per_partition":%d}`, b.topic, partitions, inFlightCap)
	return b.targets[0].newCall().expect(201, "POST", "/v1/topics", "application/json", []byte(body))
}

func (b *bench) remove() error {
	return b.targets[0].newCall().expect(204, "DELETE", "/v1/topics/"+b.topic, "", nil)
}

// workers makes n step functions over the targets in turn.
func (b *bench) workers(n int, make func(i int, c *call) step) []step {
	out := []step{}
	for i := range n {
		out = append(out, make(i, b.targets[i%len(b.targets)].newCall()))
	}
	return out
}

func (b *bench) single(_ int, c *call) step {
	return func() (int, time.Duration, error) {
		return 1, 0, c.expect(202, "POST", b.path("/produce"), "application/octet-stream", b.payload)
	}
}

// produceBatch sends batches of 100 in the binary format.
func (b *bench) produceBatch(_ int, c *call) step {
	body := encodeBatch(b.payload)
	return func() (int, time.Duration, error) {
		return batchSize, 0, c.expect(202, "POST", b.path("/produce/batch"), batch.ContentType, body)
	}
}

// encodeBatch is a produce body of batchSize equal messages, as api.md section 8 has it.
func encodeBatch(payload []byte) []byte {
	body := []byte("NRB1\x01\x00\x00\x00")
	body = binary.BigEndian.AppendUint32(body, batchSize)
	for range batchSize {
		body = binary.BigEndian.AppendUint32(body, uint32(2+len(payload)))
		body = append(body, 0, 0)
		body = append(body, payload...)
	}
	return body
}

// consumeOne takes and acks one message; errEnd when nothing came within the wait.
func (b *bench) consumeOne(_ int, c *call) step {
	return func() (int, time.Duration, error) {
		status, answer, err := c.do("POST", b.path("/consume?encoding=base64&wait="+consumeWait), "", "", nil)
		if err != nil {
			return 0, 0, err
		}
		if status == 204 {
			return 0, 0, errEnd
		}
		handle := field(answer, `"receipt_handle":"`)
		if status != 200 || handle == "" {
			return 0, 0, fmt.Errorf("consume: status %d: %.200s", status, answer)
		}
		return 1, 0, c.expect(204, "POST", b.path("/ack?receipt_handle="+handle), "", nil)
	}
}

// field cuts a string member out of a JSON answer; good enough for handles,
// which need no escaping.
func field(doc []byte, prefix string) string {
	at := bytes.Index(doc, []byte(prefix))
	if at < 0 {
		return ""
	}
	rest := doc[at+len(prefix):]
	return string(rest[:max(bytes.IndexByte(rest, '"'), 0)])
}

// consumeBatch takes and acks a hundred at a time, in the binary format.
func (b *bench) consumeBatch(_ int, c *call) step {
	return func() (int, time.Duration, error) {
		status, answer, err := c.do("POST", b.path(fmt.Sprintf("/consume?max=%d&wait=%s", batchSize, consumeWait)), "", batch.ContentType, nil)
		if err != nil {
			return 0, 0, err
		}
		if status == 204 {
			return 0, 0, errEnd
		}
		if status != 200 {
			return 0, 0, fmt.Errorf("consume: status %d: %.200s", status, answer)
		}
		handles, err := handlesOf(answer)
		if err != nil {
			return 0, 0, err
		}
		body, err := json.Marshal(map[string][]string{"receipt_handles": handles})
		if err != nil {
			return 0, 0, err
		}
		return len(handles), 0, c.expect(200, "POST", b.path("/ack"), "application/json", body)
	}
}

// endToEndPhase has producers and consumers of single messages at once; a
// message carries the time of its produce call.
func (b *bench) endToEndPhase(name string, produce func(*call, []byte) (int, error), producers, consumers int) result {
	begin := time.Now()
	var produced, consumed atomic.Int64
	work := b.workers(producers, func(_ int, c *call) step {
		payload := append([]byte(nil), b.payload...)
		return func() (int, time.Duration, error) {
			binary.BigEndian.PutUint64(payload, uint64(time.Since(begin)))
			n, err := produce(c, payload)
			produced.Add(int64(n))
			return 0, 0, err // counted when it is consumed
		}
	})
	work = append(work, b.workers(consumers, func(_ int, c *call) step {
		return func() (int, time.Duration, error) {
			status, answer, err := c.do("POST", b.path("/consume?wait="+consumeWait), "", batch.ContentType, nil)
			if err != nil || status == 204 {
				return 0, 0, err
			}
			if status != 200 {
				return 0, 0, fmt.Errorf("consume: status %d: %.200s", status, answer)
			}
			payload, handle, err := firstOf(answer)
			if err != nil {
				return 0, 0, err
			}
			took := time.Since(begin) - time.Duration(binary.BigEndian.Uint64(payload))
			consumed.Add(1)
			return 1, took, c.expect(204, "POST", b.path("/ack?receipt_handle="+handle), "", nil)
		}
	})...)
	r := drive(name, b.length, work)
	if behind := produced.Load() - consumed.Load(); behind > produced.Load()/10 {
		r.FirstError = fmt.Sprintf("consumers fell behind: %d produced, %d consumed", produced.Load(), consumed.Load())
	}
	return r
}

// paced is single at a fixed total rate, timed from when each was due.
func (b *bench) paced(rate float64) result {
	workers := b.connections
	interval := time.Duration(float64(workers) / rate * float64(time.Second))
	begin := time.Now()
	return drive("single, half of the peak rate", b.length, b.workers(workers, func(i int, c *call) step {
		due := begin.Add(interval * time.Duration(i) / time.Duration(workers))
		return func() (int, time.Duration, error) {
			if wait := time.Until(due); wait > 0 {
				<-time.After(wait)
			}
			at := due
			due = due.Add(interval)
			err := c.expect(202, "POST", b.path("/produce"), "application/octet-stream", b.payload)
			return 1, time.Since(at), err
		}
	}))
}
