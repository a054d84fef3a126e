// Package route takes consumers to the partitions that have something for them,
// and settlements, replays and questions to the leaders that answer them.
//
// A consumer that waits is a waiter in a lane (any partition, or a pinned one) of
// one life of a topic. Each partition is, as far as this gateway knows, worth
// asking or not: an answer "nothing more" makes it not worth asking, and leaves a
// wake-up armed at its leader; a wake-up, a new leader or leader epoch makes it
// worth asking again. One call per storage node carries what all waiters of all
// topics want of it at that moment; what comes up meanwhile goes with the next.
//
// Invariants:
//   - No lease without a taker: a waiter is a taker of one call at a time. Only a
//     call that does not return in time lets go of its takers; what it still brings
//     is given to others who wait, or released at once.
//   - A waiter with nothing to ask costs nothing but its own deadline.
//   - A consume ends within its wait + 0.5 s, whatever is down, and within 1 s of
//     its topic's end.
//   - Takers are served first come, first served; partitions and nodes in turn.
//
// What it knows is only a hint: leaders check leadership, incarnation and leases
// themselves. A wake-up that was lost is made up for by asking again every 10 s.
// route_test.go shows each rule over storage nodes in memory.
package route
