package election

import (
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
