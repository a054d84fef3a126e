//go:build !linux

package edge

// hungUp cannot tell on this system: a consume of a client that left waits its
// time, and its leases end when the answer cannot be written.
func hungUp(int) bool { return false }
