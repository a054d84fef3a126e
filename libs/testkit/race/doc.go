// Package race tells tests whether the race detector watches them. What has one
// goroutine (a model, a search, a simulation) has no race to find and takes ten times as
// long: there a test plays fewer seeds, and one that only proves what such a model can
// find is skipped. `make test` plays all of them. Nothing that shares memory may ask.
package race
