package proc

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is the part of the cgroup's limit that the Go heap may grow to
// before it collects harder; the rest is for stacks, buffers of the kernel and
// the memory that bbolt maps.
const memoryShare = 0.9

// cgroupLimitFiles are where version 2 and version 1 tell the limit.
var cgroupLimitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// noLimitAbove is what a version 1 cgroup without a limit shows: a number near 2^63.
const noLimitAbove = 1 << 60

func setMemoryLimit(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	for _, name := range cgroupLimitFiles {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if limit := memoryLimit(string(raw)); limit > 0 {
			debug.SetMemoryLimit(limit)
			log.Debug("memory limit set from the cgroup", "bytes", limit)
		}
		return
	}
}

// memoryLimit turns the content of a cgroup file into a limit; 0: none.
func memoryLimit(content string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(content), 10, 64)
	if err != nil || n <= 0 || n > noLimitAbove {
		return 0
	}
	return int64(float64(n) * memoryShare)
}

// MemoryLimit is the limit in force in bytes; 0: none.
func MemoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < noLimitAbove {
		return limit
	}
	return 0
}
