package metastate

import (
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

func TestLost(t *testing.T) {
	members := map[string]*topic.Member{
		"here": {DiskID: 1}, "here2": {DiskID: 1}, "down": {DiskID: 1, Status: topic.StatusDead}, "wiped": {DiskID: 2},
	}
	for name, c := range map[string]struct {
		on   []string
		want bool
	}{
		"here": {[]string{"here"}, false}, "down": {[]string{"down"}, false}, "wiped": {[]string{"wiped"}, true}, "gone": {[]string{"gone"}, true},
		"two of three are left": {[]string{"wiped", "here", "down"}, false},
		"one of three is left":  {[]string{"wiped", "gone", "here"}, true},
		"one of two is left":    {[]string{"wiped", "here"}, true},
		"both are":              {[]string{"here2", "here"}, false},
	} {
		a := &topic.Assignment{}
		for _, n := range c.on {
			a.Replicas = append(a.Replicas, topic.Replica{Node: n, DiskID: 1})
		}
		if got := Lost(a, members); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
