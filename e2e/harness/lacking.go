package harness

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// What a machine may not have or not allow; a scenario that needs it skips then.
const (
	NeedNetns   = "netns"   // network namespaces, and one of them as a router with iptables
	NeedPayload = "payload" // a kernel that drops packets by what is in them
	NeedMount   = "mount"   // a file system of a test's own
)

// requireEnv lists, separated by commas, what is certain to be there.
const requireEnv = "NARAD_E2E_REQUIRE"

// Lacking skips a test for want of something, or fails it where NARAD_E2E_REQUIRE lists
// that: who has found it there wants to know when a proof is not made all the same.
func Lacking(t testing.TB, need, format string, args ...any) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(requireEnv), ","), need) {
		t.Fatalf(need+" is required by "+requireEnv+": "+format, args...)
	}
	t.Skipf(format, args...)
}
