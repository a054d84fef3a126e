package metastate

import (
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Result is what became of an entry: the same on every node. Which of the
// values are set depends on the entry's type.
type Result struct {
	// Refusal is nil when the entry was carried out. A refused entry changed nothing.
	Refusal *Refusal
	// Topic: create and update: the record as it stands now; delete: as it was.
	Topic *topic.Topic
	// Member: register: the record as it stands now.
	Member *topic.Member
	// Stamps: heartbeats: one outcome per item, in order.
	Stamps []StampOutcome
	// Marked: mark dead: one answer per item, in order; false when the member
	// was heard since, is dead already, or is not there.
	Marked []bool
	// Done: entries with items about partitions: one answer per item, in order;
	// false when the partition is not as the item says.
	Done []bool
	// Effects tells the shell what to read again.
	Effects Effects
}

// Effects lists what an entry changed, for caches above the state.
type Effects struct {
	Topics    []string // names whose record or assignments changed, went or came
	Members   []string // ids whose record changed by more than a stamp
	ClusterID bool
}

// Any tells whether there is anything that a View shows differently now.
func (e *Effects) Any() bool { return len(e.Topics) > 0 || len(e.Members) > 0 || e.ClusterID }

// Refusal says why an entry changed nothing.
type Refusal struct {
	Code    problem.Code
	Detail  string
	Members map[string]any
}

// Err gives the refusal as a *problem.Problem, or nil when there is none.
func (r *Result) Err() error {
	if r.Refusal == nil {
		return nil
	}
	p := problem.New(r.Refusal.Code, "%s", r.Refusal.Detail)
	for k, v := range r.Refusal.Members {
		p.With(k, v)
	}
	return p
}

// StampOutcome is what became of one heartbeat.
type StampOutcome uint8

// The outcomes.
const (
	Stamped      StampOutcome = iota // it was and is alive
	Revived                          // it was marked dead and is alive now
	StampUnknown                     // no such member: it must register
	StampStale                       // another process start registered since: it must register
)

func refuse(code problem.Code, detail string) Result {
	return Result{Refusal: &Refusal{Code: code, Detail: detail}}
}

func (r Result) with(name string, v any) Result {
	if r.Refusal.Members == nil {
		r.Refusal.Members = map[string]any{}
	}
	r.Refusal.Members[name] = v
	return r
}
