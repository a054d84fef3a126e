package topic

import (
	"errors"
	"strings"
	"testing"
)

func TestValidateName(t *testing.T) {
	good := []string{"orders", "a", "A.b_c-9", strings.Repeat("x", 200), "t.stale-", "t.stale-3f9a", "x.stale-3f9a17c4e2b08d51x", "..."}
	for _, s := range good {
		if err := ValidateName(s); err != nil {
			t.Errorf("ValidateName(%q) = %v, want nil", s, err)
		}
	}
	bad := []string{
		"", ".", "..", "../x", "a/b", `a\b`, "a b", "é", "a\x00", strings.Repeat("x", 201), "t ", "~",
		"t.stale-3f9a17c4e2b08d51", "t.stale-3f9a17c4e2b08d51-", "t.stale-3f9a17c4e2b08d51-12", "T.STALE-3F9A17C4E2B08D51",
		"t.quarantine", "t.Quarantine",
	}
	for _, s := range bad {
		if err := ValidateName(s); !errors.Is(err, ErrInvalidName) {
			t.Errorf("ValidateName(%q) = %v, want ErrInvalidName", s, err)
		}
	}
}

func TestID64RoundTripAndRefusals(t *testing.T) {
	id, err := ParseID64("3f9a17c4e2b08d51")
	if err != nil || id.String() != "3f9a17c4e2b08d51" {
		t.Fatalf("ParseID64 = %v, %v", id, err)
	}
	for _, s := range []string{"", "3f9a", "3F9A17C4E2B08D51", "3f9a17c4e2b08d5g", "+f9a17c4e2b08d51", "3f9a17c4e2b08d511"} {
		if _, err := ParseID64(s); !errors.Is(err, ErrInvalidID) {
			t.Errorf("ParseID64(%q) = %v, want ErrInvalidID", s, err)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"partitions":                    func(c *Config) { c.Partitions = 1025 },
		"replication_factor":            func(c *Config) { c.ReplicationFactor = 2 },
		"retention_ms":                  func(c *Config) { c.RetentionMS = 1 },
		"retention_bytes":               func(c *Config) { c.RetentionBytes = -1 },
		"visibility_timeout_ms":         func(c *Config) { c.VisibilityTimeoutMS = 999 },
		"max_in_flight_per_partition":   func(c *Config) { c.MaxInFlight = 0 },
		"max_acked_ahead_per_partition": func(c *Config) { c.MaxAckedAhead = 1_000_001 },
		"max_deliveries":                func(c *Config) { c.MaxDeliveries = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		var fe *FieldError
		if err := c.Validate(); !errors.As(err, &fe) || fe.Field != field {
			t.Errorf("%s: Validate() = %v", field, err)
		}
	}
}
