//go:build !race

package race

// Enabled tells that this binary was built with the race detector.
const Enabled = false
