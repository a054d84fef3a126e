package controller

import (
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func TestForgettable(t *testing.T) {
	record := &topic.Member{ID: "x"}
	for name, c := range map[string]struct {
		record *topic.Member
		server bool
		topics []string
		want   problem.Code
	}{
		"a stranger":                {nil, true, nil, ""},
		"unknown":                   {nil, false, nil, problem.MemberNotFound},
		"unknown, with partitions":  {nil, false, []string{"t"}, problem.MemberNotFound},
		"a member":                  {record, true, nil, problem.HasMemberRecord},
		"a member without a server": {record, false, nil, problem.HasMemberRecord},
		"one with partitions":       {nil, true, []string{"t"}, problem.HasAssignments},
	} {
		t.Run(name, func(t *testing.T) {
			err := forgettable("x", c.record, c.server, c.topics)
			if c.want == "" && err != nil || c.want != "" && !problem.HasCode(err, c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
