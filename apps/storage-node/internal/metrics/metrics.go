// Package metrics names what a storage node counts. One set serves all
// partitions: series per topic belong to another page (see the operator port)
// and are not here.
package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Set is the metrics of one storage node. Safe for concurrent use.
type Set struct {
	CommitSeconds    prometheus.Histogram // from arrival to the answer of a commit that succeeded
	CommitRecords    prometheus.Counter   // records appended
	Duplicates       prometheus.Counter   // records dropped as already known
	FsyncSeconds     prometheus.Histogram // one group fsync of a partition
	CommitsPerFsync  prometheus.Histogram // commits that one fsync served
	CorruptSkipped   prometheus.Counter   // records that consumers never get
	DamagedRanges    prometheus.Counter   // damaged byte ranges found in partition logs
	DamagedOffsets   prometheus.Counter   // offsets found missing when logs were opened
	DroppedUnsettled prometheus.Counter   // records that retention removed before they were settled
	PositionFailures prometheus.Counter   // writes of consumer positions that failed
	OpenPartitions   prometheus.Gauge
	LostCopies       prometheus.Counter // copies that are not, or have less than, what the metastore records
	BadFetches       prometheus.Counter // fetches and answers to them that no honest peer sends
	RepairedOffsets  prometheus.Counter // offsets fetched again from another replica
	StaleDirectories prometheus.Counter // topic directories set aside on open

	PurgedDirs        prometheus.Counter // topic directories of ended lives removed
	ReclaimedBytes    prometheus.Counter // bytes of files removed with them
	PurgeFailures     prometheus.Counter // directories of ended lives that could not be removed; they are tried again
	PurgesIgnored     prometheus.Counter // purges asked for of what is not here, or not confirmed gone
	CopiesReclaimed   prometheus.Counter // copies removed of partitions that live elsewhere
	CopiesQuarantined prometheus.Counter // those set aside because their leader did not vouch for all they had
	CopiesKept        prometheus.Gauge   // copies set aside that lay here at the last sweep
	QuarantinesKept   prometheus.Gauge   // directories set aside that the last sweep kept
	SweepsRefused     prometheus.Counter // sweeps that would have taken too much and took nothing
}

// Gauges are read when they are scraped.
type Gauges struct {
	Leases     func() float64 // in flight
	Free       func() float64 // bytes of the data disk
	LagRecords func() float64 // of the slowest replica of any partition led here, behind its leader
	LagSeconds func() float64 // since the replica that has been behind longest had everything
	Lost       func() float64 // partitions whose only copy is recorded here and not there
	Damaged    func() float64 // partitions led here of whose logs damage is known
}

// New makes the set and registers it, together with the gauges.
func New(reg prometheus.Registerer, g Gauges) (*Set, error) {
	s := &Set{
		CommitSeconds: histogram("narad_commit_seconds", "Time from the arrival of a batch at its leader to its commit."),
		CommitRecords: counter("narad_commit_records_total", "Records appended and committed by partitions led here."),
		Duplicates:    counter("narad_duplicates_dropped_total", "Records that a partition already had and dropped."),
		FsyncSeconds:  histogram("narad_partition_fsync_seconds", "Duration of one fsync of a partition log."),
		CommitsPerFsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_partition_commits_per_fsync", Help: "Batches made durable by one fsync of a partition log.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		CorruptSkipped:   counter("narad_consumer_corrupt_skipped_total", "Records passed over because this only copy cannot be read."),
		DamagedRanges:    counter("narad_damage_ranges_total", "Damaged byte ranges met in partition logs."),
		DamagedOffsets:   counter("narad_damage_gap_offsets_total", "Offsets found missing between valid batches when a log was opened or copied."),
		DroppedUnsettled: counter("narad_dropped_unsettled_total", "Records that retention removed before they were settled."),
		PositionFailures: counter("narad_position_write_failures_total", "Writes of consumer positions that failed and are repeated."),
		OpenPartitions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "narad_partitions_open", Help: "Partitions whose object is in memory.",
		}),
		LostCopies:        counter("narad_lost_copies_total", "Copies of replicated partitions found missing or short when they were opened."),
		BadFetches:        counter("narad_bad_fetches_total", "Fetches, and answers to fetches, that were refused because no honest peer sends them."),
		RepairedOffsets:   counter("narad_repaired_offsets_total", "Offsets of damaged copies that were fetched again from another replica."),
		StaleDirectories:  counter("narad_stale_directories_total", "Topic directories of another life set aside on open."),
		PurgedDirs:        counter("narad_purged_directories_total", "Topic directories of deleted topics removed."),
		ReclaimedBytes:    counter("narad_reclaimed_bytes_total", "Bytes of files removed with the directories of deleted topics."),
		PurgeFailures:     counter("narad_purge_failures_total", "Directories of deleted topics that could not be removed; they are tried again."),
		PurgesIgnored:     counter("narad_purges_ignored_total", "Purges asked for of what is not here or not confirmed gone."),
		CopiesReclaimed:   counter("narad_superseded_copies_reclaimed_total", "Copies removed of partitions that have moved elsewhere."),
		CopiesQuarantined: counter("narad_superseded_copies_quarantined_total", "Copies of partitions that have moved elsewhere, set aside because they had more than their leader vouches for."),
		CopiesKept: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "narad_quarantined_copies", Help: "Copies of partitions that moved away and may have what nobody else has: set aside until an operator has looked.",
		}),
		QuarantinesKept: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "narad_quarantines_kept", Help: "Topic directories set aside that the last sweep kept.",
		}),
		SweepsRefused: counter("narad_sweeps_refused_total", "Sweeps that would have taken too many directories and took none."),
	}
	all := []prometheus.Collector{
		s.CommitSeconds, s.CommitRecords, s.Duplicates, s.FsyncSeconds, s.CommitsPerFsync, s.CorruptSkipped, s.DamagedRanges,
		s.DamagedOffsets, s.DroppedUnsettled, s.PositionFailures, s.OpenPartitions, s.StaleDirectories, s.LostCopies, s.BadFetches, s.RepairedOffsets,
		s.PurgedDirs, s.ReclaimedBytes, s.PurgeFailures, s.PurgesIgnored, s.QuarantinesKept, s.SweepsRefused, s.CopiesReclaimed, s.CopiesQuarantined, s.CopiesKept,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "narad_leases", Help: "Records leased to consumers now."}, g.Leases),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "narad_disk_free_bytes", Help: "Free bytes of the data disk."}, g.Free),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_replica_lag_records", Help: "Offsets by which the slowest replica is behind, of any partition led here.",
		}, g.LagRecords),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_replica_lag_seconds", Help: "For how long the replica that is behind longest has been so, of any partition led here.",
		}, g.LagSeconds),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_lost_partitions", Help: "Partitions whose only copy is recorded to be on this disk and is not there: an operator has to put it back or reset them.",
		}, g.Lost),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_damaged_partitions", Help: "Partitions led here of which this copy keeps damaged bytes, met in it or in a copy that it was made from.",
		}, g.Damaged),
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the storage node: %w", err)
		}
	}
	return s, nil
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// histogram has buckets from 0.1 ms, a fast local fsync, to 13 s.
func histogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
	})
}
