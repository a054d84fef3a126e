// Package leak fails the tests of a package that leave goroutines behind. It is not
// part of testkit so that only who uses it depends on the library.
package leak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines that were told to end may take until they count
// as leaked. The library gives them less than half a second: a connection that net/http
// has answered for the last time stays that long by itself, and on a busy machine every
// other one may.
const patience = 30 * time.Second

// Main runs the tests of a package and fails when they leave goroutines behind. It is
// what TestMain calls, and does not return.
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := leaked(patience, ignore...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// None fails a test that leaves goroutines behind; use it in a defer.
func None(t testing.TB, ignore ...goleak.Option) {
	t.Helper()
	if err := leaked(patience, ignore...); err != nil {
		t.Error(err)
	}
}

// leaked looks until none but the tests' own goroutines are left.
func leaked(within time.Duration, ignore ...goleak.Option) error {
	for end := time.Now().Add(within); ; {
		err := goleak.Find(ignore...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
