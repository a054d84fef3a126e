// Package election gives replicated partitions their leaders. It runs on the
// voter that leads the metastore, as a part of the controller.
//
//	what the metastore says  ──┐
//	a storage node's hint   ───┼─> which partitions need a leader (plan, pure)
//	a node that stops       ───┤      1 entry: epoch + 1, leader none
//	leaderships not even    ───┘      2 fence every replica, wait for a majority
//	                                  3 choose the largest (last epoch, LEO) (quorum.Elect, pure)
//	                                  4 prime the chosen one, entry: it leads
//
// Many partitions that need a leader at one moment (a node that died led
// hundreds) share the entries and the calls.
//
// Leaderships are evened out when nothing has to be elected: every 10 s placement.Lead
// plans at most 16 hand-overs, from the leaders as they are. It takes those that restarts
// and deaths put elsewhere back to the first of their set, as far as that is even, and
// evens out what moves and decommissions left. A partition that moves, or whose leader
// drains, is left to its move. When one of a chain of hand-overs cannot be reached, none of
// it is made: its other leaders, which hold already, are told to go on, and they are not
// asked again for a minute, nor does a node that was behind get any.
//
// A damaged copy is asked as any other and never chosen. When nobody else who promised
// is known to have everything committed, nobody is, until another copy answers; the log
// and narad_elections_total{outcome="damaged"} say so.
//
// Invariants: a leader is chosen only from the answers of a majority of the
// replica set that fenced the epoch under which it will lead, and the entry
// that makes it leader is refused when epoch, set or leadership changed since; so
// two controllers, or one with an old view, cannot do harm. A hint, a timeout or a
// member's silence only starts an election, which is safe at any time.
//
// It does not serve partitions with one copy (they wait for their node), changes
// no replica set and moves nothing. TestEveryElectionNeedsAMajority and the
// simulation of libs/quorum/sim explain it.
package election
