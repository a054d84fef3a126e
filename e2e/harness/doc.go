// Package harness runs the shipped programs for the end-to-end tests: a whole
// cluster through `narad dev`, as an operator's drill would, with the same
// levers (process ids, hold files, endpoints) and nothing in-process.
//
// Invariants: everything listens on 127.0.0.1 on ports that were found free;
// every process is stopped by its id when the test ends; a failed test keeps
// the data directory and says where it is.
package harness
