package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Applied tells whether a failed request may have changed anything.
type Applied string

const (
	// AppliedNo: nothing was stored or changed; a retry cannot duplicate.
	AppliedNo Applied = "no"
	// AppliedUnknown: it may have been. A repeated produce may duplicate; metadata must be read back.
	AppliedUnknown Applied = "unknown"
)

// Code is the stable identifier of a refusal. The API's reference lists all; these
// are the ones that a program branches on.
type Code string

// The codes that callers decide by.
const (
	CodeInvalidRequest       Code = "invalid_request"
	CodeBatchTooLarge        Code = "batch_too_large"
	CodeInvalidReceiptHandle Code = "invalid_receipt_handle"
	CodeOffsetOutOfRange     Code = "offset_out_of_range"
	CodeTopicNotFound        Code = "topic_not_found"
	CodeTopicExists          Code = "topic_exists"
	CodeTopicChanged         Code = "topic_changed"
	CodeTopicInUse           Code = "topic_in_use"
	CodeOutOfSequence        Code = "out_of_sequence"
	CodeLeaseLost            Code = "lease_lost"
	CodeOffsetGone           Code = "offset_gone"
	CodePreconditionFailed   Code = "precondition_failed"
	CodeMessageTooLarge      Code = "message_too_large"
	CodeTooManyRequests      Code = "too_many_requests"
	CodeNotImplemented       Code = "not_implemented"
	CodeNotReady             Code = "not_ready"
	CodeDraining             Code = "draining"
	CodeOverloaded           Code = "overloaded"
	CodeDiskFull             Code = "disk_full"
	CodeTopicBacklogFull     Code = "topic_backlog_full"
	CodePartitionUnavailable Code = "partition_unavailable"
	CodeNoMetastoreLeader    Code = "no_metastore_leader"
	CodeNotEnoughStorage     Code = "not_enough_storage_nodes"
	CodeWALUnavailable       Code = "wal_unavailable"
	CodeOutcomeUnknown       Code = "outcome_unknown"
)

// Error is a call that failed: the problem that a gateway answered, or a transport
// failure (Status 0, Err set). Every failed call of this package returns one, but
// for arguments that were refused before anything was sent.
type Error struct {
	Op         string        // what was tried, e.g. `produce to "orders"`
	Gateway    string        // base URL of the gateway of the last attempt
	Status     int           // HTTP status; 0: no answer
	Code       Code          // empty when the answer was not a problem of Narad's
	Applied    Applied       // over all attempts of the call; empty on reads
	RetryAfter time.Duration // what the gateway asked for; 0: nothing
	RequestID  string        // to be quoted to the operator
	Detail     string        // one sentence for a human
	Parameter  string        // the offending field or parameter, when named
	Attempts   int           // how often the call was tried
	Problem    []byte        // the problem document as it came, for members not listed here
	Err        error         // cause of a transport failure or of giving up

	final bool // never retried: the next gateway would do the same
}

// Error is one line: action, status, code, detail, whether it was applied.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	b.WriteString(": ")
	if e.Status != 0 {
		fmt.Fprintf(&b, "%d ", e.Status)
	}
	switch {
	case e.Code != "":
		b.WriteString(string(e.Code))
	case e.Status != 0:
		b.WriteString(strings.ToLower(http.StatusText(e.Status)))
	case e.Gateway == "":
		b.WriteString("not sent")
	default:
		b.WriteString("no answer from " + e.Gateway)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Applied == AppliedUnknown {
		b.WriteString(" (it may have been applied)")
	}
	if e.RequestID != "" {
		b.WriteString(" [request " + e.RequestID + "]")
	}
	return b.String()
}

// Unwrap gives the cause of a transport failure.
func (e *Error) Unwrap() error { return e.Err }

// Member decodes one member of the problem (api.md lists them per code) into out
// and tells whether it was there and fitted.
func (e *Error) Member(name string, out any) bool {
	var doc map[string]json.RawMessage
	if json.Unmarshal(e.Problem, &doc) != nil {
		return false
	}
	raw, ok := doc[name]
	return ok && json.Unmarshal(raw, out) == nil
}

// HasCode tells whether err is an Error with that code.
func HasCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

type problemDoc struct {
	Code         Code    `json:"code"`
	Applied      Applied `json:"applied"`
	RetryAfterMS int64   `json:"retry_after_ms"`
	RequestID    string  `json:"request_id"`
	Detail       string  `json:"detail"`
	Parameter    string  `json:"parameter"`
}

// problemError reads a refusal. Whoever stands between may have written it: then
// there is no code, and a mutation counts as unknown.
func problemError(status int, h http.Header, body []byte, mutating bool) *Error {
	e := &Error{Status: status, RequestID: h.Get("Narad-Request-Id")}
	var doc problemDoc
	if strings.HasPrefix(h.Get("Content-Type"), "application/problem+json") && json.Unmarshal(body, &doc) == nil {
		e.Code, e.Applied, e.Detail, e.Parameter = doc.Code, doc.Applied, doc.Detail, doc.Parameter
		if doc.RequestID != "" {
			e.RequestID = doc.RequestID
		}
		e.Problem = body
	}
	e.RetryAfter = retryAfter(h.Get("Retry-After"), doc.RetryAfterMS)
	if !mutating {
		e.Applied = ""
	} else if e.Applied != AppliedNo {
		e.Applied = AppliedUnknown
	}
	return e
}

// maxRetryAfter bounds what a hint may ask for: an hour in a header would park a client.
const maxRetryAfter = time.Minute

// retryAfter prefers the finer value; HTTP dates are not sent by Narad and ignored.
func retryAfter(header string, ms int64) time.Duration {
	d := time.Duration(0)
	if ms > 0 && ms <= maxRetryAfter.Milliseconds() {
		d = time.Duration(ms) * time.Millisecond
	} else if ms > 0 {
		d = maxRetryAfter
	} else if s, err := strconv.ParseUint(header, 10, 32); err == nil {
		d = time.Duration(s) * time.Second
	}
	return min(d, maxRetryAfter)
}
