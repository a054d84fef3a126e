// Command bench measures a running Narad cluster over HTTP as clients use it,
// and, in the same run, a floor: a bare HTTP server that appends the same bodies
// to one file with a group fsync. It prints a table with ratios to the floor, and
// JSON with --json.
//
//	bench run   --server URL [--server URL] [--endpoints run/endpoints.json] [--seconds N]
//	bench dev   starts `narad dev` beside it, and both floors, and measures all
//	bench floor --kind nethttp|fasthttp  is the floor by itself
//
// The load is bounded in time and count, and it shares the machine with what it
// measures: compare ratios of one run, not absolute figures of two machines.
package main
