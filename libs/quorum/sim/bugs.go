package sim

// Bug is a mistake that the shell can be told to make. All of them lie in the
// shell or in what it overrides; package quorum knows nothing of them.
type Bug int

// The mistakes.
const (
	NoBug Bug = iota
	NoEpochRule
	CountObservers
	ElectWithoutMajority
	TwoChangesAtOnce
	ChangeJudgedByOldHWM
	TruncateBelowHWM
	RestartRaisesEpoch
	ReopenSameEpoch
	WipedCounts
	WipedFences
	WipedLeads
	OldDiskCounts
	ReadmitBelowInheritedHWM
	FenceLost
	DuplicateAnsweredEarly
	NumbersKept
	DamagedEndIgnored
	bugEnd
)

// String says what the mistake is.
func (b Bug) String() string {
	return [...]string{
		"none",
		"no current-epoch rule (Figure 8)",
		"majority counted with observers",
		"election among the reachable, without a majority",
		"two replica changes at once",
		"next replica change judged by an old HWM",
		"truncation below the HWM",
		"a restarted leader that only raises its own epoch",
		"a log reopened after a failed sync in the same epoch",
		"a wiped replica that counts at once",
		"a wiped replica that fences at once",
		"a wiped replica that leads at once",
		"the offset of the old disk still counts",
		"re-admission below an inherited HWM",
		"a fence lost at a power cut",
		"a duplicate answered before its first copy is committed",
		"producer numbers not taken back at truncation",
		"a damaged copy promises, and what it has is ignored",
	}[b]
}

// Bugs lists the mistakes.
func Bugs() []Bug {
	var out []Bug
	for b := NoBug + 1; b < bugEnd; b++ {
		out = append(out, b)
	}
	return out
}
