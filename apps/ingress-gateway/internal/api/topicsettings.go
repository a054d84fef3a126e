package api

import (
	"errors"

	"github.com/narad-mq/narad/libs/topic"
)

// The fields of a topic document that a caller may send.
const (
	topicName = iota
	topicPartitions
	topicReplication
	topicRetentionMS
	topicRetentionBytes
	topicVisibility
	topicMaxInFlight
	topicMaxAckedAhead
	topicReroute
	topicMaxDeliveries
	topicDeadLetter
	topicParent
	topicDelay
	topicSchema
)

func topicFields() []string {
	return []string{
		"name", "partitions", "replication_factor", "retention_ms", "retention_bytes", "visibility_timeout_ms",
		"max_in_flight_per_partition", "max_acked_ahead_per_partition", "reroute", "max_deliveries",
		"dead_letter_topic", "parent", "delay_ms", "schema",
	}
}

// readOnlyFields are fields of the answer that nobody can set: a PATCH that
// carries one is refused as immutable, not as unknown.
func readOnlyFields() []string {
	return []string{"incarnation", "version", "created_at", "role", "children", "schema_version"}
}

// readSetting reads the value of one field into cfg. later is the feature that a
// value asks for and that is not built.
func readSetting(r *jsonReader, field int, name string, cfg *topic.Config) (later string, err error) {
	var n int64
	switch field {
	case topicReroute:
		cfg.Reroute, err = r.boolean(name)
		return "", err
	case topicDeadLetter:
		return laterValue(r, featureDeadLetters)
	case topicSchema:
		return laterValue(r, featureSchema)
	}
	if n, err = r.integer(name); err != nil {
		return "", err
	}
	switch field {
	case topicPartitions:
		cfg.Partitions = int(n)
	case topicReplication:
		cfg.ReplicationFactor = int(n)
	case topicRetentionMS:
		cfg.RetentionMS = n
	case topicRetentionBytes:
		cfg.RetentionBytes = n
	case topicVisibility:
		cfg.VisibilityTimeoutMS = n
	case topicMaxInFlight:
		cfg.MaxInFlight = int(n)
	case topicMaxAckedAhead:
		cfg.MaxAckedAhead = int(n)
	case topicMaxDeliveries:
		cfg.MaxDeliveries = int(n)
	}
	return "", nil
}

// laterValue skips a value whose only one so far is null.
func laterValue(r *jsonReader, feature string) (string, error) {
	v, err := r.value()
	if err != nil || string(v) == "null" {
		return "", err
	}
	return feature, nil
}

// checkConfig refuses values out of range first, then those of later issues.
func checkConfig(cfg topic.Config, later string) error {
	var fe *topic.FieldError
	if err := cfg.Validate(); errors.As(err, &fe) {
		return badParameter(fe.Field, "%s", fe.Error())
	} else if err != nil {
		return err
	}
	switch {
	case later != "":
	case cfg.MaxDeliveries != 0:
		later = featureDeadLetters
	default:
		return nil
	}
	return notImplemented(later)
}
