// Package scenarios holds the end-to-end tests: what a user or an operator
// would notice of the shipped programs, under real input, crashes and restarts.
// They are built with the tag e2e and run by `make e2e`; each starts its own
// cluster through package harness and asserts through the public client.
//
// A scenario that mostly waits is t.Parallel: `make e2e` runs a few of them at once.
// One that measures how fast something is, that bounds an election or that keeps the
// processors busy runs alone.
package scenarios
