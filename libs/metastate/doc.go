// Package metastate is the metadata of a cluster as a function: an entry applied
// to a state transaction gives a result, the same on every node.
package metastate
