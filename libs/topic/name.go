package topic

import (
	"errors"
	"fmt"
	"strings"
)

// MaxNameLength bounds a topic name in bytes. With the longest suffix that a
// quarantine adds (".stale-" + 16 digits + "-" + a counter) the directory name
// stays below the 255 bytes that file systems allow.
const MaxNameLength = 200

// ErrInvalidName is the sentinel below every name refusal.
var ErrInvalidName = errors.New("invalid topic name")

const (
	staleInfix       = ".stale-"
	quarantineSuffix = ".quarantine"
)

// ValidateName tells whether s may name a topic: 1..200 bytes of
// `A-Z a-z 0-9 . _ -`, neither "." nor "..", and not a name that Narad gives
// to directories it has set aside. The error wraps ErrInvalidName and says why.
// It is asked at the edge, in the state machine and where directories are named.
func ValidateName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(s) > MaxNameLength:
		return fmt.Errorf("%w: longer than %d bytes", ErrInvalidName, MaxNameLength)
	case s == "." || s == "..":
		return fmt.Errorf("%w: %q is a directory reference", ErrInvalidName, s)
	}
	for i := range len(s) {
		if !nameByte(s[i]) {
			return fmt.Errorf("%w: only A-Z a-z 0-9 . _ - are allowed", ErrInvalidName)
		}
	}
	folded := FoldName(s)
	if strings.HasSuffix(folded, quarantineSuffix) || endsLikeStale(folded) {
		return fmt.Errorf("%w: the ending is reserved for directories set aside", ErrInvalidName)
	}
	return nil
}

// FoldName is the form under which names are unique: lower case, so that two
// topics never share a directory on a file system that ignores case.
func FoldName(s string) string { return strings.ToLower(s) }

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// endsLikeStale reports a folded name that ends in ".stale-" and 16 hex digits,
// with or without "-" and decimal digits after them.
func endsLikeStale(s string) bool {
	at := strings.LastIndex(s, staleInfix)
	if at < 0 {
		return false
	}
	rest := s[at+len(staleInfix):]
	if len(rest) < incarnationDigits {
		return false
	}
	for i := range incarnationDigits {
		if !hexDigit(rest[i]) {
			return false
		}
	}
	rest = rest[incarnationDigits:]
	if rest == "" || rest == "-" {
		return true
	}
	if rest[0] != '-' {
		return false
	}
	for i := 1; i < len(rest); i++ {
		if rest[i] < '0' || rest[i] > '9' {
			return false
		}
	}
	return true
}

func hexDigit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
