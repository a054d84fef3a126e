//go:build !release_prev

package release

// Name is the version that every program of this source reports.
const Name = "0.2.0"
