// Package release says what this release of Narad is called, and what it knows
// of the things that two releases of one cluster must agree on: the entries of
// the Raft log (the table of package metastate) and the fields of the requests
// between nodes (Fields, here).
//
// Invariant: what a release knows follows from its name alone, by the Since of
// each row. So the build tag release_prev, which swaps nothing but the name,
// makes programs that stand for the previous release: they apply fewer entry
// types, do not send the newer fields, and refuse them as a strict decoder
// does. They stand for its part in a conversation, not for its faults, and they
// answer operations that the previous release did not have.
//
// It is data: no file, network or clock. TestFields shows the rules of a row;
// the scenarios in e2e/scenarios/releases_test.go run both releases together.
package release

// First is the release whose entry types and request fields every release has.
const First = "0.1.0"

// order lists the releases, the oldest first. A new release is added here and
// becomes Name; the stand-in takes the name that was current before.
func order() [2]string { return [...]string{First, "0.2.0"} }

// Has tells whether release own has what came with release since. It is false
// for a name that is none.
func Has(own, since string) bool {
	for _, r := range order() {
		switch r {
		case since:
			return true
		case own:
			return false
		}
	}
	return false
}
