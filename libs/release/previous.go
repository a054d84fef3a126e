//go:build release_prev

package release

// Name is the version that the stand-in of the previous release reports.
const Name = First
