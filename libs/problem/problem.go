// Package problem is the error that crosses processes: an HTTP status, a stable
// code, whether anything may have been applied, and what the caller should do.
// It is written as RFC 9457 problem+json (api.md, section 2).
//
// Invariant: every code stands once in the table of codes.go, with the status
// it always has; New refuses others by panicking, so that a misspelt code fails
// the first test that reaches it. The package neither logs nor knows a router:
// libraries return ordinary errors, and one place per process boundary turns
// them into a Problem. A Detail never holds another tenant's data, a secret, an
// internal address or a chain of Go errors.
package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// ContentType is the media type of a problem document.
const ContentType = "application/problem+json"

// Applied tells on a mutating route what may have happened.
type Applied string

// The two answers, and none for routes that change nothing.
const (
	AppliedNone    Applied = ""
	AppliedNo      Applied = "no"      // nothing was stored or changed; a retry cannot duplicate
	AppliedUnknown Applied = "unknown" // it may have been; a retry may duplicate
)

// Problem is one refusal. It is an error; use errors.As to find it.
type Problem struct {
	Status       int
	Code         Code
	Applied      Applied
	RetryAfterMS int64 // 0: not given
	Detail       string
	RequestID    string
	Members      map[string]any // further members of the code, as api.md lists them
}

// New makes a problem of a known code with the table's status, applied and
// retry hint. format and args make Detail.
func New(code Code, format string, args ...any) *Problem {
	row, ok := byCode[code]
	if !ok {
		panic("BUG: problem code not in the table: " + string(code))
	}
	return &Problem{
		Status: row.Status, Code: code, Applied: row.Applied, RetryAfterMS: row.RetryAfterMS,
		Detail: fmt.Sprintf(format, args...),
	}
}

// With returns p with one more member.
func (p *Problem) With(name string, value any) *Problem {
	if p.Members == nil {
		p.Members = make(map[string]any, 1)
	}
	p.Members[name] = value
	return p
}

// Unknown returns p with Applied set to unknown: for a code whose outcome
// depends on how far the request came.
func (p *Problem) Unknown() *Problem { p.Applied = AppliedUnknown; return p }

// Error gives "code: detail".
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// Is makes errors.Is(err, problem.New(code, "")) match by code.
func (p *Problem) Is(target error) bool {
	var other *Problem
	return errors.As(target, &other) && other.Code == p.Code
}

// HasCode tells whether err is, or wraps, a problem of this code.
func HasCode(err error, code Code) bool {
	var p *Problem
	return errors.As(err, &p) && p.Code == code
}

// reserved are the members that MarshalJSON writes itself.
var reserved = map[string]bool{
	"type": true, "title": true, "status": true, "code": true, "applied": true,
	"retry_after_ms": true, "request_id": true, "detail": true,
}

// MarshalJSON writes the document, the fixed members first, the others by name.
func (p *Problem) MarshalJSON() ([]byte, error) {
	fixed := struct {
		Type         string  `json:"type"`
		Title        string  `json:"title"`
		Status       int     `json:"status"`
		Code         Code    `json:"code"`
		Applied      Applied `json:"applied,omitempty"`
		RetryAfterMS int64   `json:"retry_after_ms,omitempty"`
		RequestID    string  `json:"request_id,omitempty"`
		Detail       string  `json:"detail"`
	}{"about:blank", http.StatusText(p.Status), p.Status, p.Code, p.Applied, p.RetryAfterMS, p.RequestID, p.Detail}
	out, err := json.Marshal(fixed)
	if err != nil || len(p.Members) == 0 {
		return out, err
	}
	more, err := json.Marshal(p.Members)
	if err != nil {
		return nil, fmt.Errorf("members of problem %s: %w", p.Code, err)
	}
	return append(append(out[:len(out)-1], ','), more[1:]...), nil
}

// UnmarshalJSON reads a document that another process wrote; members that are
// not fixed ones go to Members. An unknown code is kept: it is a newer release's.
func (p *Problem) UnmarshalJSON(b []byte) error {
	var fixed struct {
		Status       int     `json:"status"`
		Code         Code    `json:"code"`
		Applied      Applied `json:"applied"`
		RetryAfterMS int64   `json:"retry_after_ms"`
		RequestID    string  `json:"request_id"`
		Detail       string  `json:"detail"`
	}
	if err := json.Unmarshal(b, &fixed); err != nil {
		return err
	}
	*p = Problem{
		Status: fixed.Status, Code: fixed.Code, Applied: fixed.Applied,
		RetryAfterMS: fixed.RetryAfterMS, RequestID: fixed.RequestID, Detail: fixed.Detail,
	}
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	for name, v := range all {
		if !reserved[name] {
			p.With(name, v)
		}
	}
	return nil
}
