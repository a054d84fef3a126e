package metaapi

import (
	"net"
	"strconv"
)

// maxHintBytes bounds a hint: the longest host name (255), ':' and a port.
const maxHintBytes = 261

// ValidHint tells whether s may be dialled as a leader hint: host:port with a
// host, of at most 261 bytes, with a decimal port of 1..65535. It comes from
// another process, so it is checked before every use.
func ValidHint(s string) bool {
	if len(s) > maxHintBytes {
		return false
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
