// Package scenarios holds the end-to-end tests: what a user or an operator
// would notice of the shipped programs, under real input, crashes and restarts.
// They are built with the tag e2e and run by `make e2e`; each starts its own
// cluster through package harness and asserts through the public client.
package scenarios
