// Package topic is Narad's vocabulary: names, identities, settings, partitions,
// assignments and members, as every program and every plane means them.
//
// It holds values and their rules only. It knows no file, network, clock or
// goroutine, and nothing in it is mutable after it was published.
package topic
