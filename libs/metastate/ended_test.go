package metastate

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func TestForgetEnded(t *testing.T) {
	m := newMemTx()
	for i, name := range []string{"a", "b", "c", "d"} {
		wantOK(t, m.do(t, createOne(name, topic.Incarnation(i+1), "s1")))
		if name != "d" {
			wantOK(t, m.do(t, &DeleteTopic{Name: name, Incarnation: topic.Incarnation(i + 1), NowMS: int64(i)}))
		}
	}
	ids := func(after topic.Incarnation, limit int) (out []topic.Incarnation) {
		t.Helper()
		list, err := Endings(m, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			out = append(out, e.Incarnation)
		}
		return out
	}
	if got := ids(0, 2); !slices.Equal(got, []topic.Incarnation{1, 2}) {
		t.Errorf("first page %v", got)
	}
	if got := ids(2, 2); !slices.Equal(got, []topic.Incarnation{3}) {
		t.Errorf("second page %v", got)
	}
	// One that lives among them: nothing is forgotten.
	res := m.do(t, &ForgetEnded{IDs: []topic.Incarnation{1, 4}})
	wantCode(t, res, problem.TopicChanged)
	if res.Refusal.Members["incarnation"] != topic.Incarnation(4) || !IsEnded(m, 1) || !IsLive(m, 4) {
		t.Errorf("%+v", res.Refusal)
	}
	wantOK(t, m.do(t, &ForgetEnded{IDs: []topic.Incarnation{1, 3, 99}}))
	if got := ids(0, 9); !slices.Equal(got, []topic.Incarnation{2}) || IsLive(m, 1) {
		t.Errorf("left %v", got)
	}
	// A name whose end is forgotten still never shows an old version again.
	res = m.do(t, createOne("a", 9, "s1"))
	if wantOK(t, res); res.Topic.Version < 2 {
		t.Errorf("version %d", res.Topic.Version)
	}
	checkInvariants(t, m)
}
