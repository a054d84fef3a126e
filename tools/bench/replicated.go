package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

// drainLimit bounds the wait for what a 202 promised to be committed.
const drainLimit = time.Minute

// replicatedPhases compares what a message costs with one copy and with three, when
// it is accepted and when it is committed before the answer, all on one cluster. A
// phase of 202s ends when everything has been committed, so that processor time per
// message means the same in all of them.
func (b *bench) replicatedPhases(add func(string, func() result)) error {
	name := b.topic
	for _, factor := range []int{1, 3} {
		for _, ack := range []string{"accepted", "committed"} {
			b.topic = name
			if err := b.createCopies(fmt.Sprintf("-%d-%s", factor, ack), factor); err != nil {
				return err
			}
			sent := int64(0)
			run := func(workers int, make func(int, *call) step) func() result {
				return func() result {
					r := drive("", b.length, b.workers(workers, make))
					sent += r.Messages
					if err := b.drained(sent); err != nil && r.FirstError == "" {
						r.FirstError = err.Error()
					}
					return r
				}
			}
			what := fmt.Sprintf("factor %d, ack=%s, ", factor, ack)
			add(what+"one at a time", run(1, b.acked(ack)))
			add(what+"single", run(b.connections, b.acked(ack)))
			add(what+"batches of 100", run(b.connections/4, b.ackedBatch(ack)))
			if err := b.remove(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) createCopies(suffix string, factor int) error {
	b.topic += suffix
	body := fmt.Sprintf(`{"name":%q,"partitions":%d,"replication_factor":%d}`, b.topic, partitions, factor)
	return b.targets[0].newCall().expect(201, "POST", "/v1/topics", "application/json", []byte(body))
}

func statusOf(ack string) int {
	if ack == "committed" {
		return 200
	}
	return 202
}

func (b *bench) acked(ack string) func(int, *call) step {
	return func(_ int, c *call) step {
		return func() (int, time.Duration, error) {
			return 1, 0, c.expect(statusOf(ack), "POST", b.path("/produce?ack="+ack), "application/octet-stream", b.payload)
		}
	}
}

func (b *bench) ackedBatch(ack string) func(int, *call) step {
	return func(_ int, c *call) step {
		body := encodeBatch(b.payload)
		return func() (int, time.Duration, error) {
			status, answer, err := c.do("POST", b.path("/produce/batch?ack="+ack), batch.ContentType, "", body)
			var told struct{ Accepted, Committed int }
			if err == nil {
				err = json.Unmarshal(answer, &told)
			}
			if err == nil && (status != statusOf(ack) || told.Accepted+told.Committed != batchSize) {
				err = fmt.Errorf("batch: status %d: %.200s", status, answer)
			}
			return batchSize, 0, err
		}
	}
}

// drained waits until the partitions have so many messages.
func (b *bench) drained(messages int64) error {
	c := b.targets[0].newCall()
	for end := time.Now().Add(drainLimit); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		_, answer, err := c.do("GET", "/v1/topics/"+b.topic, "", "", nil)
		var t struct{ Backlog int64 }
		if err == nil && json.Unmarshal(answer, &t) == nil && t.Backlog >= messages {
			return nil
		}
	}
	return fmt.Errorf("not all of %d messages were committed within %s", messages, drainLimit)
}
