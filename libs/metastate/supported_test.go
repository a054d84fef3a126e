package metastate

import (
	"errors"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/topic"
)

// reporting makes member records by the newest type that each reports.
func reporting(newest map[string]uint8) map[string]*topic.Member {
	members := map[string]*topic.Member{}
	for id, n := range newest {
		members[id] = &topic.Member{ID: id, NewestEntryType: n}
	}
	return members
}

// TestFirstReleaseIsTheBase: what is proposed without asking is exactly what
// every release applies.
func TestFirstReleaseIsTheBase(t *testing.T) {
	for _, row := range allRows() {
		if first := row.Since == release.First; first != (row.Type <= newestOfFirst) {
			t.Errorf("%s, type %d, is since %s; types up to %d are those of the first release, %s",
				row.Name, row.Type, row.Since, newestOfFirst, release.First)
		}
		if !release.Has(release.Name, row.Since) {
			t.Errorf("%s is since %s, which is no release up to this one", row.Name, row.Since)
		}
	}
}

func TestLacking(t *testing.T) {
	const next = TypeBeginElections
	all := uint8(NewestType())
	for name, c := range map[string]struct {
		t       Type
		servers []string
		members map[string]uint8
		want    []string
	}{
		"everybody reports it":                    {next, []string{"v1", "v2"}, map[string]uint8{"v1": all, "v2": all, "s1": all}, nil},
		"exactly this one":                        {next, []string{"v1", "v2"}, map[string]uint8{"v1": all, "v2": uint8(next)}, nil},
		"one less":                                {next, []string{"v1", "v2"}, map[string]uint8{"v1": all, "v2": uint8(next) - 1}, []string{"v2"}},
		"a server without a record":               {next, []string{"v1", "v3", "v2"}, map[string]uint8{"v1": all}, []string{"v2", "v3"}},
		"a member that is no server":              {next, []string{"v1"}, map[string]uint8{"v1": all, "g1": 7}, []string{"g1"}},
		"one that reports nothing":                {next, []string{"v1", "v2"}, map[string]uint8{"v1": all, "v2": 0}, []string{"v2"}},
		"the proposer knows itself":               {next, []string{"v1"}, nil, nil},
		"the proposer's record is of an old time": {next, []string{"v1"}, map[string]uint8{"v1": 0}, nil},
		"base types need no report":               {TypeDeleteTopic, []string{"v1", "v2"}, map[string]uint8{"s1": 0}, nil},
		"a type of a later release":               {250, []string{"v1", "v2"}, map[string]uint8{"v1": 255, "v2": 255}, []string{"v1"}},
	} {
		if got := Lacking(c.t, "v1", c.servers, reporting(c.members)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestOlderThanAll(t *testing.T) {
	for name, c := range map[string]struct {
		joiner  uint8
		newest  Type
		members map[string]uint8
		want    bool
	}{
		"the first member":                       {0, 0, nil, false},
		"as the others":                          {12, 7, map[string]uint8{"v1": 12}, false},
		"newer":                                  {13, 12, map[string]uint8{"v1": 12}, false},
		"fewer than every member":                {11, 7, map[string]uint8{"v1": 12, "v2": 13}, true},
		"as one of them":                         {12, 7, map[string]uint8{"v1": 12, "v2": 13}, false},
		"nothing reported, all newer":            {0, 7, map[string]uint8{"v1": 12}, true},
		"nothing reported, one does not either":  {0, 7, map[string]uint8{"v1": 12, "v2": 0}, false},
		"nothing reported is the first release":  {0, 7, map[string]uint8{"v1": 7}, false},
		"fewer than what was applied":            {11, 12, map[string]uint8{"v1": 11}, true},
		"fewer than what was applied, no member": {0, 9, nil, true},
		"nobody of record, nothing applied":      {7, 7, nil, false},
	} {
		if got := OlderThanAll(c.joiner, c.newest, reporting(c.members)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// later is an entry of a release that is not this one.
type later struct{}

func (later) EntryType() Type { return 250 }

// TestNobodyProposesWhatItDoesNotApply: its own log would stop it.
func TestNobodyProposesWhatItDoesNotApply(t *testing.T) {
	if _, err := Encode(later{}); !errors.Is(err, ErrUnknownEntryType) {
		t.Errorf("encoded: %v", err)
	}
	if got := NameOf(250); got != "type 250" {
		t.Errorf("it is called %q", got)
	}
	if got := NameOf(TypeDeleteTopic); got != "delete_topic" {
		t.Errorf("type %d is called %q", TypeDeleteTopic, got)
	}
}
