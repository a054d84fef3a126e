package topic

import "fmt"

// Limits of a topic's settings (api.md, section 3).
const (
	MaxPartitions          = 1024      // a leader table of a topic stays one small message
	MinRetentionMS         = 3_600_000 // one hour: below it segments would be cut while being consumed
	MinVisibilityMS        = 1_000
	MaxVisibilityMS        = 43_200_000
	MaxInFlightLimit       = 100_000   // a lease costs about 100 bytes of memory
	MaxAckedAheadLimit     = 1_000_000 // settled ranges above the frontier, worst case one record each
	MaxRetentionMS         = 1 << 53   // what a JSON number carries exactly
	MaxDeliveriesLimit     = 1_000_000
	DefaultPartitions      = 3
	DefaultRetentionMS     = 7 * 24 * 3_600_000
	DefaultVisibilityMS    = 30_000
	DefaultMaxInFlight     = 1024
	DefaultMaxAckedAhead   = 100_000
	DefaultReplicationFact = 1
)

// Config is what a user may set on a topic.
type Config struct {
	Partitions          int    `json:"partitions"`
	ReplicationFactor   int    `json:"replication_factor"`
	RetentionMS         int64  `json:"retention_ms"`    // 0: for ever
	RetentionBytes      int64  `json:"retention_bytes"` // per partition; 0: no bound
	VisibilityTimeoutMS int64  `json:"visibility_timeout_ms"`
	MaxInFlight         int    `json:"max_in_flight_per_partition"`
	MaxAckedAhead       int    `json:"max_acked_ahead_per_partition"`
	Reroute             bool   `json:"reroute"`
	MaxDeliveries       int    `json:"max_deliveries"` // 0: no limit
	DeadLetterTopic     string `json:"dead_letter_topic,omitempty"`
}

// DefaultConfig is a topic created by name alone.
func DefaultConfig() Config {
	return Config{
		Partitions: DefaultPartitions, ReplicationFactor: DefaultReplicationFact,
		RetentionMS: DefaultRetentionMS, VisibilityTimeoutMS: DefaultVisibilityMS,
		MaxInFlight: DefaultMaxInFlight, MaxAckedAhead: DefaultMaxAckedAhead, Reroute: true,
	}
}

// FieldError names the setting that is out of range.
type FieldError struct {
	Field  string // JSON name
	Reason string // a clause that completes "<field> ..."
}

// Error gives "<field> <reason>".
func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// Validate returns the first *FieldError, or nil.
func (c Config) Validate() error {
	between := func(field string, v, low, high int64) error {
		if v < low || v > high {
			return &FieldError{field, fmt.Sprintf("must be between %d and %d", low, high)}
		}
		return nil
	}
	if c.ReplicationFactor != 1 && c.ReplicationFactor != 3 && c.ReplicationFactor != 5 {
		return &FieldError{"replication_factor", "must be 1, 3 or 5"}
	}
	if c.RetentionMS != 0 && (c.RetentionMS < MinRetentionMS || c.RetentionMS > MaxRetentionMS) {
		return &FieldError{"retention_ms", fmt.Sprintf("must be 0 (for ever) or at least %d", MinRetentionMS)}
	}
	for _, r := range []struct {
		field        string
		v, low, high int64
	}{
		{"partitions", int64(c.Partitions), 1, MaxPartitions},
		{"retention_bytes", c.RetentionBytes, 0, MaxRetentionMS},
		{"visibility_timeout_ms", c.VisibilityTimeoutMS, MinVisibilityMS, MaxVisibilityMS},
		{"max_in_flight_per_partition", int64(c.MaxInFlight), 1, MaxInFlightLimit},
		{"max_acked_ahead_per_partition", int64(c.MaxAckedAhead), 1, MaxAckedAheadLimit},
		{"max_deliveries", int64(c.MaxDeliveries), 0, MaxDeliveriesLimit},
	} {
		if err := between(r.field, r.v, r.low, r.high); err != nil {
			return err
		}
	}
	return nil
}
