package rpc

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
)

// callWithout is Call for a request object. A peer of an older release refuses a
// field that it does not know with 400 and the field's name; when the field may
// be left out, the request is sent again at once without it, and later requests
// to that address go without it for lifecycle.FieldDroppedFor. Nothing was done
// by what was refused, so this is right for changes too. Any other 400 is final.
func (p *Peer) callWithout(ctx context.Context, m Method, body []byte) (Reply, error) {
	droppable := release.Droppable(m.Name)
	if len(droppable) == 0 {
		return p.Call(ctx, m, body)
	}
	left := append(release.Lacks(p.client.cfg.Release, m.Name), p.client.dropped.fields(p.addr, m.Name, droppable)...)
	for {
		request, err := without(body, left)
		if err != nil {
			return Reply{}, p.fail(m, false, err)
		}
		reply, err := p.Call(ctx, m, request)
		field := refusedField(err)
		if !slices.Contains(droppable, field) || slices.Contains(left, field) {
			return reply, err
		}
		p.client.dropped.remember(p.addr, m.Name, field)
		left = append(left, field)
	}
}

// refusedField is the field that a 400 names, or "".
func refusedField(err error) string {
	var refusal *problem.Problem
	if !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest {
		return ""
	}
	field, _ := refusal.Members["parameter"].(string)
	return field
}

// without leaves fields out of an object.
func without(body []byte, fields []string) ([]byte, error) {
	if len(fields) == 0 {
		return body, nil
	}
	var object map[string]jsontext.Value
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	for _, f := range fields {
		delete(object, f)
	}
	return json.Marshal(object, json.Deterministic(true))
}

// unknownField is the refusal of an object with a field that this release lacks,
// or nil. What is no object is left to the decoder.
func unknownField(body []byte, lacks []string) *problem.Problem {
	var object map[string]jsontext.Value
	if len(lacks) == 0 || json.Unmarshal(body, &object) != nil {
		return nil
	}
	for _, f := range lacks {
		if _, ok := object[f]; ok {
			return invalidField(f, "is not known here")
		}
	}
	return nil
}

// maxDropped bounds the memory: every field of the table for 1,000 peers. Past
// it everything is forgotten, which costs one refused request each.
const maxDropped = 4096

// dropped remembers which peer refused which field, by address, because a
// request to join is sent to addresses.
type dropped struct {
	now func() time.Time

	mu    sync.Mutex // guards until
	until map[droppedKey]time.Time
}

type droppedKey struct{ addr, operation, field string }

// fields lists which of the names a peer refused lately, and forgets what it
// refused before.
func (d *dropped) fields(addr, operation string, names []string) (refused []string) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		key := droppedKey{addr, operation, name}
		until, ok := d.until[key]
		if ok && now.Before(until) {
			refused = append(refused, name)
		} else if ok {
			delete(d.until, key)
		}
	}
	return refused
}

func (d *dropped) remember(addr, operation, field string) {
	until := d.now().Add(lifecycle.FieldDroppedFor)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.until) >= maxDropped || d.until == nil {
		d.until = map[droppedKey]time.Time{}
	}
	d.until[droppedKey{addr, operation, field}] = until
}
