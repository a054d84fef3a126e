package leak

import (
	"testing"
	"time"
)

// TestLeaksAreFound: what ends late is no leak, what does not end is one.
func TestLeaksAreFound(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	go func() { <-release }()
	if leaked(0) == nil {
		t.Error("a goroutine that stands is not seen")
	}
	late := time.NewTimer(time.Second) // longer than the library waits
	go func() { <-late.C }()
	release <- struct{}{}
	if err := leaked(patience); err != nil {
		t.Error(err)
	}
}
