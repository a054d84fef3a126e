// Package sim is a randomized model of one gateway, its write-ahead log and the
// partitions that it dispatches to, under a virtual clock: the real decisions
// (libs/dispatchq) between simple models of everything around them.
//
// Faults, each drawn from the seed: nodes that crash and lose what they had not
// synced, that refuse, that hang, that sync slowly; requests that arrive late;
// answers that are lost; a metadata view that lags or cannot tell yet; gossip that
// suspects whom it likes, for as long as it likes; a gateway
// that crashes with records accepted and not acknowledged, with an old checkpoint,
// or half-way through parking a queue; a volume that is restored from a copy.
//
// Invariants, checked by a ledger that sees everything: every acknowledged record
// is committed at the end; no partition holds a record twice; two partitions hold
// one only for a reason that contract.md lists; a batch of unknown outcome goes
// nowhere else while somebody can answer for it; the machine always ends empty.
//
// The same run with one planted Bug must break an invariant within a few seeds:
// TestModelCatchesPlantedBugs. A failure names its seed, and a seed is a run.
package sim
