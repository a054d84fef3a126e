package election

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// vanishing is a view whose only member is buried after the first look.
type vanishing struct {
	metastate.View
	looks int
}

func (v *vanishing) Members() *metastate.MemberTable {
	v.looks++
	if v.looks > 1 {
		return &metastate.MemberTable{}
	}
	return v.View.Members()
}

// A member that is removed between two looks is not there; it ends no voter.
func TestWireOutlivesItsMembers(t *testing.T) {
	meta := testkit.NewMeta()
	meta.PutMember(topic.Member{ID: "s1", DiskID: 1, RPCAddr: "127.0.0.1:1"})
	client := rpc.NewClient(rpc.ClientConfig{ClusterID: func() string { return "" }})
	defer client.Close()
	ref := topic.Ref{Topic: "a", Incarnation: 1}
	if err := (&Wire{View: &vanishing{View: meta}, RPC: client}).Prime(t.Context(), "s1", []Prime{{Ref: ref, Epoch: 2}}); err == nil {
		t.Error("nobody is there to be primed")
	}
	ok, err := (&Wire{View: &vanishing{View: meta}, RPC: client}).HandOver(t.Context(), "s1", []HandOver{{Ref: ref, Epoch: 2}})
	if err != nil || ok[0] {
		t.Errorf("nobody is there to hand over: %v, %v", ok, err)
	}
}

// Positions that are large have a call of their own: one that is more than a call may
// carry would be refused at each election.
func TestPrimesFitIntoCalls(t *testing.T) {
	sized := func(size int) Prime {
		return Prime{Positions: [][]byte{make([]byte, size/2), make([]byte, size-size/2)}}
	}
	small, most, huge := sized(100), sized(maxPrimed), sized(5*maxPrimed)
	for name, c := range map[string]struct {
		items []Prime
		want  []int // items of each call
	}{
		"none":                {nil, nil},
		"small ones together": {[]Prime{small, small, small}, []int{3}},
		"as much as goes":     {[]Prime{sized(maxPrimed - 100), small, small}, []int{2, 1}},
		"a huge one alone":    {[]Prime{small, most, huge, small, huge}, []int{1, 1, 1, 1, 1}},
	} {
		var got []int
		for _, part := range primes(c.items) {
			got = append(got, len(part))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
