package api

import (
	"bytes"
	"strconv"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// precondition is an If-Match header.
type precondition struct {
	given       bool
	incarnation topic.Incarnation
	version     uint64
}

// ifMatch reads one strong ETag of ours; a star and lists are refused.
func (c *call) ifMatch() (precondition, error) {
	v, n := c.req.Headers.Get("If-Match")
	if n == 0 {
		return precondition{}, nil
	}
	bad := badParameter("If-Match", "If-Match is one ETag as a topic's answer gave it")
	id, version, ok := bytes.Cut(bytes.Trim(v, `"`), []byte{'-'})
	if n > 1 || !ok || len(version) > 0 && version[0] == '0' {
		return precondition{}, bad
	}
	p := precondition{given: true}
	var err error
	if p.incarnation, err = topic.ParseID64(string(id)); err != nil {
		return p, bad
	}
	number, ok := digits(version)
	p.version = uint64(number)
	if !ok || string(v) != etag(&topic.Topic{Incarnation: p.incarnation, Version: p.version}) {
		return p, bad
	}
	return p, nil
}

func (p precondition) check(t *topic.Topic) error {
	if !p.given || p.incarnation == t.Incarnation && p.version == t.Version {
		return nil
	}
	return problem.New(problem.PreconditionFailed, "%q has changed", t.Name).
		With("version", t.Version).With("incarnation", t.Incarnation)
}

func etag(t *topic.Topic) string {
	b := append(make([]byte, 0, 40), '"')
	b = append(appendID(b, t.Incarnation), '-')
	b = strconv.AppendUint(b, t.Version, 10)
	return string(append(b, '"'))
}
