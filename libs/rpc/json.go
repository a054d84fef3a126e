package rpc

import (
	"errors"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/narad-mq/narad/libs/problem"
)

// encodeJSON appends v to b.
func encodeJSON(b []byte, v any) ([]byte, error) {
	out, err := json.Marshal(v)
	return append(b, out...), err
}

// decodeJSON reads exactly one value: an unknown, other-case or duplicate name,
// a wrong type or trailing bytes are refused.
func decodeJSON(b []byte, v any) error {
	return json.Unmarshal(b, v, json.RejectUnknownMembers(true))
}

// invalidJSON turns an error of decodeJSON into 400 invalid_request; its member
// parameter names the field, which lets a newer release send the request again
// without a field that an older one does not know (callWithout).
func invalidJSON(err error) *problem.Problem {
	pointer := jsontext.Pointer("")
	reason := "is not valid JSON"
	var semantic *json.SemanticError
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic):
		pointer, reason = semantic.JSONPointer, "has the wrong type or value"
		if errors.Is(err, json.ErrUnknownName) {
			reason = "is not known here"
		}
	case errors.As(err, &syntax):
		pointer = syntax.JSONPointer
		if errors.Is(err, jsontext.ErrDuplicateName) {
			reason = "stands twice"
		}
	}
	field := strings.ReplaceAll(strings.TrimPrefix(string(pointer), "/"), "/", ".")
	if field == "" {
		return problem.New(problem.InvalidRequest, "the body %s", reason).With("parameter", "")
	}
	return invalidField(field, reason)
}

func invalidField(field, reason string) *problem.Problem {
	return problem.New(problem.InvalidRequest, "field %s %s", field, reason).With("parameter", field)
}

// malformedError is a refusal of a body that is no request, and not of what one
// asks for: no process of this cluster sends it.
type malformedError struct{ *problem.Problem }

// Unwrap gives the refusal.
func (e *malformedError) Unwrap() error { return e.Problem }

// Malformed is what a handler of raw bytes answers to a body that it cannot decode;
// the server logs it, as it does for JSON.
func Malformed(m Method) error {
	return &malformedError{problem.New(problem.InvalidRequest, "the %s body is malformed", m.Name)}
}
