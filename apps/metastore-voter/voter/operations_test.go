package voter

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// operations are all that a voter may be asked, with a body that it understands.
// TestBadInput compares them with what a voter serves.
func operations() map[string]any {
	ref := topic.Ref{Topic: "kept", Incarnation: 9}
	return map[string]any{
		"join":        metaapi.JoinRequest{NodeID: "s9", DiskID: 9, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2", NewestEntryType: 255},
		"register":    metaapi.RegisterRequest{NodeID: "s9", DiskID: 9, BootNonce: 9, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2", NewestEntryType: 255},
		"heartbeat":   metaapi.HeartbeatRequest{NodeID: "s1", DiskID: 9, BootNonce: 9},
		"members":     struct{}{},
		"quorum":      struct{}{},
		"raft_status": struct{}{},
		"forget":      metaapi.ForgetRequest{NodeID: "s9"},

		"create_topic": onePartition("bad"),
		"update_topic": metaapi.UpdateTopicRequest{Name: "kept", Incarnation: 9, Config: topic.DefaultConfig()},
		"delete_topic": metaapi.DeleteTopicRequest{Name: "kept", Incarnation: 9},
		"lookup_topic": metaapi.LookupTopicRequest{Name: "kept"},
		"confirm":      metaapi.ConfirmRequest{},
		"endings":      metaapi.EndingsRequest{},
		"forget_ended": metaapi.ForgetEndedRequest{IDs: []topic.Incarnation{9}},

		"attach_child": metaapi.AttachChildRequest{Parent: "kept", ParentIncarnation: 9, Child: "child", ChildIncarnation: 9},
		"detach_child": metaapi.DetachChildRequest{Parent: "kept", ParentIncarnation: 9, Child: "child", AttachEpoch: 9},
		"create_child": metaapi.CreateChildRequest{Name: "child", Config: topic.DefaultConfig(), Parent: "kept", ParentIncarnation: 9},

		"record_copies": metaapi.RecordCopiesRequest{Copies: []metaapi.CopyReport{{Ref: ref, Node: "s1", DiskID: 9, CopyID: 9}}},
		"step_down":     metaapi.StepDownRequest{NodeID: "s1", BootNonce: 9},
		"suspect":       metaapi.SuspectRequest{From: "g1", NodeID: "s9"},
		"lost_copies":   struct{}{},
		"list_moves":    struct{}{},
		"start_move":    metaapi.StartMoveRequest{Topic: "kept", From: "s1", To: "s9"},
		"abort_move":    metaapi.AbortMoveRequest{Topic: "kept"},

		"decommission":        metaapi.DecommissionRequest{NodeID: "s9"},
		"cancel_decommission": metaapi.CancelDecommissionRequest{NodeID: "s9"},
		"member_detail":       metaapi.MemberDetailRequest{NodeID: "s9"},
		"reset_partition":     metaapi.ResetPartitionRequest{Ref: ref},
	}
}

// served are the operations that the machine answers, by name.
func (m *machine) served() map[string]rpc.Method {
	out := map[string]rpc.Method{}
	for _, method := range m.member.Server().Methods() {
		out[method.Name] = method
	}
	return out
}

// question is one that is well formed, and that no cluster can do as asked.
type question struct {
	name      string
	operation string
	body      any
	code      problem.Code
	status    int
}

// nonsense names what is not there, or not as it says, in a cluster of the voter v1, the
// storage node s1 and the topic kept, of one partition on s1.
func nonsense(kept topic.Topic) []question {
	const gone = topic.Incarnation(9)
	id, cfg := kept.Incarnation, kept.Config
	broken := cfg
	broken.Partitions = 0
	wide := cfg
	wide.ReplicationFactor = 3
	ref := topic.Ref{Topic: "kept", Incarnation: id}
	other := topic.Ref{Topic: "kept", Incarnation: gone}
	beyond := ref
	beyond.Partition = 7
	return []question{
		{"a name that is none", "create_topic", metaapi.CreateTopicRequest{Name: "../kept", Config: cfg}, problem.InvalidTopicName, 400},
		{"a name that is taken", "create_topic", metaapi.CreateTopicRequest{Name: "Kept", Config: cfg}, problem.TopicExists, 409},
		{"settings that are none", "create_topic", metaapi.CreateTopicRequest{Name: "bad", Config: broken}, problem.InvalidRequest, 400},
		{"more replicas than nodes", "create_topic", metaapi.CreateTopicRequest{Name: "bad", Config: wide}, problem.NotEnoughStorage, 503},
		{"another life", "update_topic", metaapi.UpdateTopicRequest{Name: "kept", Incarnation: gone, Version: kept.Version, Config: cfg}, problem.TopicChanged, 409},
		{"another version", "update_topic", metaapi.UpdateTopicRequest{Name: "kept", Incarnation: id, Version: kept.Version + 1, Config: cfg}, problem.PreconditionFailed, 412},
		{"settings that are none", "update_topic", metaapi.UpdateTopicRequest{Name: "kept", Incarnation: id, Version: kept.Version, Config: broken}, problem.InvalidRequest, 400},
		{"no such topic", "update_topic", metaapi.UpdateTopicRequest{Name: "none", Incarnation: id, Config: cfg}, problem.TopicNotFound, 404},
		{"another life", "delete_topic", metaapi.DeleteTopicRequest{Name: "kept", Incarnation: gone}, problem.TopicChanged, 409},
		{"no such topic", "delete_topic", metaapi.DeleteTopicRequest{Name: "none", Incarnation: id}, problem.TopicNotFound, 404},
		{"no such topic", "lookup_topic", metaapi.LookupTopicRequest{Name: "none"}, problem.TopicNotFound, 404},
		{"too many questions", "confirm", metaapi.ConfirmRequest{Questions: make([]metaapi.Question, metaapi.MaxQuestions+1)}, problem.InvalidRequest, 400},

		{"no such child", "attach_child", metaapi.AttachChildRequest{Parent: "kept", ParentIncarnation: id, Child: "none", ChildIncarnation: gone}, problem.TopicNotFound, 404},
		{"no such parent", "attach_child", metaapi.AttachChildRequest{Parent: "none", ParentIncarnation: gone, Child: "kept", ChildIncarnation: id}, problem.TopicNotFound, 404},
		{"another life of the parent", "attach_child", metaapi.AttachChildRequest{Parent: "kept", ParentIncarnation: gone, Child: "kept", ChildIncarnation: id}, problem.TopicChanged, 409},
		{"a child of itself", "attach_child", metaapi.AttachChildRequest{Parent: "kept", ParentIncarnation: id, Child: "kept", ChildIncarnation: id}, problem.RoleConflict, 409},
		{"a delay below zero", "attach_child", metaapi.AttachChildRequest{Parent: "kept", ParentIncarnation: id, Child: "kept", ChildIncarnation: id, DelayMS: -1}, problem.InvalidRequest, 400},
		{"no such parent", "detach_child", metaapi.DetachChildRequest{Parent: "none", ParentIncarnation: gone, Child: "kept", AttachEpoch: 9}, problem.TopicNotFound, 404},
		{"no such attachment", "detach_child", metaapi.DetachChildRequest{Parent: "kept", ParentIncarnation: id, Child: "none", AttachEpoch: 9}, problem.ChildNotFound, 404},
		{"no such parent", "create_child", metaapi.CreateChildRequest{Name: "child", Config: cfg, Parent: "none", ParentIncarnation: gone}, problem.TopicNotFound, 404},
		{"another life of the parent", "create_child", metaapi.CreateChildRequest{Name: "child", Config: cfg, Parent: "kept", ParentIncarnation: gone}, problem.TopicChanged, 409},
		{"a name that is none", "create_child", metaapi.CreateChildRequest{Name: "../child", Config: cfg, Parent: "kept", ParentIncarnation: id}, problem.InvalidTopicName, 400},
		{"a delay above the longest", "create_child", metaapi.CreateChildRequest{Name: "child", Config: cfg, Parent: "kept", ParentIncarnation: id, DelayMS: topic.MaxDelayMS + 1}, problem.InvalidRequest, 400},

		{"no such member", "decommission", metaapi.DecommissionRequest{NodeID: "s9"}, problem.MemberNotFound, 404},
		{"the last voter", "decommission", metaapi.DecommissionRequest{NodeID: "v1"}, problem.DecommissionUnsafe, 409},
		{"the loss of what a live node has", "decommission", metaapi.DecommissionRequest{NodeID: "s1", AcceptDataLoss: true}, problem.DecommissionUnsafe, 409},
		{"no such member", "cancel_decommission", metaapi.CancelDecommissionRequest{NodeID: "s9"}, problem.MemberNotFound, 404},
		{"one that does not leave", "cancel_decommission", metaapi.CancelDecommissionRequest{NodeID: "s1"}, problem.DecommissionUnsafe, 409},
		{"no such member", "member_detail", metaapi.MemberDetailRequest{NodeID: "s9"}, problem.MemberNotFound, 404},
		{"one that is not lost", "reset_partition", metaapi.ResetPartitionRequest{Ref: ref}, problem.PreconditionFailed, 412},
		{"another life", "reset_partition", metaapi.ResetPartitionRequest{Ref: other}, problem.TopicChanged, 409},
		{"no such partition", "reset_partition", metaapi.ResetPartitionRequest{Ref: beyond}, problem.PartitionOutOfRange, 400},
		{"no such server", "forget", metaapi.ForgetRequest{NodeID: "s9"}, problem.MemberNotFound, 404},
		{"a member", "forget", metaapi.ForgetRequest{NodeID: "s1"}, problem.HasMemberRecord, 409},

		{"nothing to record", "record_copies", metaapi.RecordCopiesRequest{}, problem.InvalidRequest, 400},
		{"too much to record", "record_copies", metaapi.RecordCopiesRequest{Copies: make([]metaapi.CopyReport, metaapi.MaxCopyReports+1)}, problem.InvalidRequest, 400},
		{"another start of a node", "step_down", metaapi.StepDownRequest{NodeID: "s1", BootNonce: 9}, problem.MemberNotFound, 404},
		{"nothing to forget", "forget_ended", metaapi.ForgetEndedRequest{}, problem.InvalidRequest, 400},
		{"too much to forget", "forget_ended", metaapi.ForgetEndedRequest{IDs: make([]topic.Incarnation, metaapi.MaxEndings+1)}, problem.InvalidRequest, 400},
		{"no id", "forget_ended", metaapi.ForgetEndedRequest{IDs: []topic.Incarnation{0}}, problem.InvalidRequest, 400},
		{"no such topic", "start_move", metaapi.StartMoveRequest{Topic: "none", From: "s1", To: "s9"}, problem.TopicNotFound, 404},
		{"no such partition", "start_move", metaapi.StartMoveRequest{Topic: "kept", Partition: -1, From: "s1", To: "s9"}, problem.PartitionOutOfRange, 400},
		{"no such member", "start_move", metaapi.StartMoveRequest{Topic: "kept", From: "s1", To: "s9"}, problem.MemberNotFound, 404},
		{"to where it is", "start_move", metaapi.StartMoveRequest{Topic: "kept", From: "s1", To: "s1"}, problem.InvalidRequest, 400},
		{"to a voter", "start_move", metaapi.StartMoveRequest{Topic: "kept", From: "s1", To: "v1"}, problem.InvalidRequest, 400},
		{"no move under way", "abort_move", metaapi.AbortMoveRequest{Topic: "kept"}, problem.MoveNotInFlight, 409},
	}
}

// TestOnlyTheLeaderAnswers: a voter that follows refuses every operation, but what
// every process says of itself.
func TestOnlyTheLeaderAnswers(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	rows := operations()
	delete(rows, "raft_status")
	for operation, row := range rows {
		body := encoded(t, row)
		testkit.Poll(t, patience, operation+" was asked of one that followed all the while", func() bool {
			for _, m := range c {
				raft := m.member.Raft()
				before := raft.Stats()
				if before.State != "follower" {
					continue
				}
				err := caller{t: t, cluster: m.member.ClusterID(), addr: m.cfg.RPCBind}.call(operation, body)
				after := raft.Stats()
				if after.State != "follower" || before.Term != after.Term || after.LeaderID == "" || before.LeaderID != after.LeaderID {
					continue
				}
				var p *problem.Problem
				if !errors.As(err, &p) || p.Code != problem.NotMetastoreLeader || p.Status != 421 || p.Applied != problem.AppliedNo ||
					p.Members["leader_id"] != before.LeaderID || metaapi.HintOf(err) == "" {
					t.Errorf("%s, of a follower of %s: %v, %+v", operation, before.LeaderID, err, p)
				}
				return true
			}
			return false
		})
	}
}
