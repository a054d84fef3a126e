// Package partition is one copy of one partition in whatever role the metastore
// gives it: the log of libs/partlog, the rule of libs/quorum, and, while it leads,
// the consume side above them. A partition with one copy is the same with a
// majority of one.
//
// # Roles
//
//	Open     the copy is compared with what the metastore records (copy.go): one
//	         that lacks something becomes another copy, which counts for nothing
//	         until the metastore records it
//	Assume   the assignment decides: lead under an epoch, follow a leader, or wait
//	         for one (assume.go, lead.go)
//	Fence    promises an epoch, ends what is led under an older one, and tells what
//	         this copy has (fence.go); Prime and HandOver are around an election, and
//	         who was not primed in this process does not lead (prime.go)
//
// # Damage
//
// What is committed and cannot be read any more is fetched again from the leader, when
// there are other replicas (repair.go). A copy that lacks it gives its leadership up,
// leads nothing, and counts in fetches for what lies below; it promises epochs, and
// what it has still tells what others may lack (quorum.Elect). What no other
// replica can have, because there is none or they were made from this copy and are not
// there yet, is nobody's to repair: the copy serves the rest, counts what is missing, and
// says of no copy that others have left that it has everything of it, so that none is
// removed (Vouch).
//
// The bytes of such damage, whoever met it, are kept beside the log and go along to a copy
// that is made of this one (pieces.go): it notes that it lacks some before it appends
// what lies behind a gap, asks the leader until it has all, and keeps them under the name
// of the copy that had them. It is not called near before, for a minute. The copy that was
// left then has nothing that this one has not, and goes; else it is set aside. Records of
// which not even bytes are left, such as the end of a lone log that its disk has lost,
// leave a note there that goes along too: who has it vouches for no copy.
//
// # Commit, as the leader
//
//	under the append lock: epoch and incarnation are checked again, records that
//	    the partition already has are dropped, the rest is appended, and the end
//	    of the log is remembered; followers that wait are told
//	outside of it: one of those who wait runs the fsync, for all of them; what
//	    is appended meanwhile waits for the next one, and followers fetch and sync
//	    at the same time (fetch.go)
//	then: the high watermark moves by the rule, and whoever waits for an end at or
//	    below it is answered, a duplicate as a first copy
//
// # Follow
//
// Request says what to fetch, Answered writes what came, byte for byte, SyncFollowed
// makes it durable (follow.go); package replication moves the bytes.
//
// Invariants: success is answered only when the high watermark has passed the end
// that the log had after the append, under the same epoch; commit times never
// decrease; nothing above the high watermark is shown, and nothing at all while no
// majority has fetched within the lease; after a failed write or sync nothing is
// appended before a new epoch, and everybody who waits hears that the outcome is
// unknown. A partition has no goroutine and no timer of its own: it works on the
// goroutines of its callers.
//
// Lock order: mu (the append lock), then posMu; the queue's lock is never held
// together with mu.
//
// It does not decide who leads (the metastore does) and does not look into
// messages. TestDuplicateWaitsLikeAFirstCopy and TestEverySyncPoint explain it.
package partition
