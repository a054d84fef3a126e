package quorum

// Holds tells whether a leader, which has committed everything below hwm under the
// history of its log, has every record of a copy whose log ends at end under its own
// history, of the same epochs: the copy may go then. Both histories are ascending.
// The leader has committed a record of its own epoch.
//
// The whole log of the copy is looked at and not only what it knew to be committed:
// a copy stores its high watermark late, and the one who leads may know nothing of the
// copy's last epochs (a metastore that went back to an older backup, a partition that
// went on with a survivor). A tail that was never committed is held to be one that was.
//
// Safe because: an epoch has one leader, so logs that both hold (epoch, offset) agree
// on everything below; and what is below the high watermark of a leader stays. What
// the histories do not tell (trimmed by retention, forgotten) is not held.
func Holds(history []EpochStart, hwm int64, copied []EpochStart, end int64) bool {
	if end <= 0 {
		return true // it never had a record
	}
	last := EpochAt(copied, end)
	if last == 0 {
		return false
	}
	_, _, diverged := Diverging(history, hwm, last, end)
	return !diverged
}
