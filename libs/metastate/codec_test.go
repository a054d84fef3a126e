package metastate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// The table as released. A line here is never edited, only added: a number on a
// log means the same for ever.
const releasedTable = `
1 cluster_id 0.1.0
2 register_member 0.1.0
3 heartbeats 0.1.0
4 mark_dead 0.1.0
5 create_topic 0.1.0
6 update_topic 0.1.0
7 delete_topic 0.1.0
8 forget_ended 0.2.0
9 begin_elections 0.2.0
10 elect_leaders 0.2.0
11 record_copies 0.2.0
12 change_replicas 0.2.0
13 grow_topic 0.2.0
14 set_draining 0.2.0
15 remove_member 0.2.0
16 attach_child 0.2.0
17 detach_child 0.2.0
18 moves 0.2.0
19 reset_partition 0.2.0
20 create_child 0.2.0
`

func TestEntryNumbersAreForEver(t *testing.T) {
	seen := map[Type]bool{}
	var b strings.Builder
	b.WriteString("\n")
	last := Type(0)
	for _, row := range Table() {
		if seen[row.Type] || row.Type <= last {
			t.Errorf("number %d stands twice or out of order", row.Type)
		}
		seen[row.Type], last = true, row.Type
		if got := row.New().EntryType(); got != row.Type {
			t.Errorf("%s makes entries of type %d", row.Name, got)
		}
		fmt.Fprintf(&b, "%d %s %s\n", row.Type, row.Name, row.Since)
	}
	if b.String() != releasedTable {
		t.Errorf("the table changed:%s", b.String())
	}
	if NewestType() != last {
		t.Errorf("newest type is %d", NewestType())
	}
}

// The bytes of entries as they stand on logs.
func TestGoldenEntries(t *testing.T) {
	cfg := topic.DefaultConfig()
	ref := topic.Ref{Topic: "t", Incarnation: 10, Partition: 2}
	attachment := topic.Attachment{
		Parent: "p", ParentIncarnation: 1, Child: topic.Child{Name: "c", Incarnation: 2, DelayMS: 5, AttachEpoch: 3, AttachedMS: 4}, Points: []int64{7, 8},
	}
	attached := `{"parent":"p","parent_incarnation":"0000000000000001","name":"c","incarnation":"0000000000000002","delay_ms":5,"attach_epoch":"0000000000000003","attached_ms":4,"points":[7,8]}`
	for _, c := range []struct {
		e    Entry
		json string
	}{
		{&ClusterID{ID: "c1"}, "\x01" + `{"id":"c1"}`},
		{
			&RegisterMember{NowMS: 5, Member: topic.Member{ID: "s1", Role: topic.RoleStorage, DiskID: 1, BootNonce: 2, RPCAddr: "a:1", RaftAddr: "a:2"}},
			"\x02" + `{"member":{"id":"s1","role":"storage-node","status":"","draining":false,"disk_id":"0000000000000001","boot_nonce":"0000000000000002","rpc_addr":"a:1","raft_addr":"a:2","release":"","newest_entry_type":0,"heartbeat_ms":0,"wal_backlog":0,"disk_used_percent":0},"now_ms":5}`,
		},
		{
			&Heartbeats{NowMS: 6, Items: []Heartbeat{{ID: "s1", BootNonce: 2, DiskUsedPercent: 3}}},
			"\x03" + `{"now_ms":6,"items":[{"id":"s1","boot_nonce":"0000000000000002","wal_backlog":0,"disk_used_percent":3}]}`,
		},
		{&ForgetEnded{IDs: []topic.Incarnation{10, 11}}, "\x08" + `{"ids":["000000000000000a","000000000000000b"]}`},
		{&MarkDead{Items: []DeadMark{{ID: "s1", HeartbeatMS: 6}}}, "\x04" + `{"items":[{"id":"s1","heartbeat_ms":6}]}`},
		{
			&DeleteTopic{Name: "t", Incarnation: 10, Version: 1, NowMS: 7},
			"\x07" + `{"name":"t","incarnation":"000000000000000a","version":1,"now_ms":7}`,
		},
		{
			&UpdateTopic{Name: "t", Incarnation: 10, Version: 1, Config: cfg},
			"\x06" + `{"name":"t","incarnation":"000000000000000a","version":1,"config":{"partitions":3,"replication_factor":1,"retention_ms":604800000,"retention_bytes":0,"visibility_timeout_ms":30000,"max_in_flight_per_partition":1024,"max_acked_ahead_per_partition":100000,"reroute":true,"max_deliveries":0}}`,
		},
		{
			&BeginElections{Items: []ElectionStart{{Ref: ref, Epoch: 3, ConfigVersion: 4}}},
			"\x09" + `{"items":[{"topic":"t","incarnation":"000000000000000a","partition":2,"epoch":3,"config_version":4}]}`,
		},
		{
			&ElectLeaders{Items: []Elected{{Ref: ref, Epoch: 3, ConfigVersion: 4, Leader: topic.Replica{Node: "s1", DiskID: 5, CopyID: 6}}}},
			"\x0a" + `{"items":[{"topic":"t","incarnation":"000000000000000a","partition":2,"epoch":3,"config_version":4,"leader":{"node":"s1","disk_id":"0000000000000005","copy_id":"0000000000000006"}}]}`,
		},
		{
			&RecordCopies{Items: []CopyRecord{{Ref: ref, Node: "s1", WasDisk: 5, Was: 6, DiskID: 7, CopyID: 8, Epoch: 9, ConfigVersion: 10}}},
			"\x0b" + `{"items":[{"topic":"t","incarnation":"000000000000000a","partition":2,"node":"s1","was_disk":"0000000000000005","was":"0000000000000006","disk_id":"0000000000000007","copy_id":"0000000000000008","epoch":9,"config_version":10}]}`,
		},
		{
			&ChangeReplicas{Ref: ref, ConfigVersion: 4, Epoch: 3, Replicas: []topic.Replica{{Node: "s1", DiskID: 5}}},
			"\x0c" + `{"topic":"t","incarnation":"000000000000000a","partition":2,"config_version":4,"epoch":3,"replicas":[{"node":"s1","disk_id":"0000000000000005"}]}`,
		},
		{
			&GrowTopic{Name: "t", Incarnation: 10, Version: 1, Config: topic.Config{Partitions: 2}, Added: []topic.Assignment{{Ref: ref, Replicas: []topic.Replica{{Node: "s1", DiskID: 5}}, Leader: "s1", LeaderEpoch: 1, ConfigVersion: 1}}},
			"\x0d" + `{"name":"t","incarnation":"000000000000000a","version":1,"config":{"partitions":2,"replication_factor":0,"retention_ms":0,"retention_bytes":0,"visibility_timeout_ms":0,"max_in_flight_per_partition":0,"max_acked_ahead_per_partition":0,"reroute":false,"max_deliveries":0},"added":[{"topic":"t","incarnation":"000000000000000a","partition":2,"replicas":[{"node":"s1","disk_id":"0000000000000005"}],"leader":"s1","leader_epoch":1,"config_version":1}]}`,
		},
		{&SetDraining{ID: "s1", On: true, NowMS: 5}, "\x0e" + `{"id":"s1","on":true,"now_ms":5}`},
		{&RemoveMember{ID: "s1", DiskID: 5, NowMS: 6}, "\x0f" + `{"id":"s1","disk_id":"0000000000000005","accept_loss":false,"now_ms":6}`},
		{
			&Moves{Start: []MoveStart{{Move: topic.Move{Ref: ref, From: "s1", To: "s2", ToDisk: 5, StartedMS: 6, Reason: topic.MoveAsked}, ConfigVersion: 7}}, Abort: []topic.MoveID{{Ref: ref, To: "s2", StartedMS: 6}}, End: []topic.MoveID{{Ref: ref, To: "s2", StartedMS: 6}}},
			"\x12" + `{"start":[{"topic":"t","incarnation":"000000000000000a","partition":2,"from":"s1","to":"s2","to_disk":"0000000000000005","started_ms":6,"reason":"asked","config_version":7}],"abort":[{"topic":"t","incarnation":"000000000000000a","partition":2,"to":"s2","started_ms":6}],"end":[{"topic":"t","incarnation":"000000000000000a","partition":2,"to":"s2","started_ms":6}]}`,
		},
		{
			&ResetPartition{Ref: ref, Epoch: 3, Replica: topic.Replica{Node: "s1", DiskID: 5}, NowMS: 6, Operator: "o"},
			"\x13" + `{"topic":"t","incarnation":"000000000000000a","partition":2,"epoch":3,"replica":{"node":"s1","disk_id":"0000000000000005"},"now_ms":6,"operator":"o"}`,
		},
		{
			&AttachChild{Attachment: attachment}, "\x10" + attached,
		},
		{
			&DetachChild{Parent: "p", ParentIncarnation: 1, Child: "c", AttachEpoch: 3, NowMS: 5},
			"\x11" + `{"parent":"p","parent_incarnation":"0000000000000001","child":"c","attach_epoch":"0000000000000003","now_ms":5}`,
		},
	} {
		raw, err := Encode(c.e)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(raw[:len(raw)-crcBytes]); got != c.json {
			t.Errorf("type %d:\ngot  %s\nwant %s", c.e.EntryType(), got, c.json)
		}
	}
	raw, err := Encode(&ClusterID{ID: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := hex.EncodeToString(raw), "017b226964223a226331227d6f50d197"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDamageAndTheUnknownAreErrors(t *testing.T) {
	good, err := Encode(createOne("orders", 1, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x40
		if _, err := Decode(bad); !errors.Is(err, ErrDamagedEntry) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	for n := range len(good) {
		if _, err := Decode(good[:n]); !errors.Is(err, ErrDamagedEntry) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := Decode(seal(200, `{}`)); !errors.Is(err, ErrUnknownEntryType) {
		t.Fatalf("unknown type: %v", err)
	}
	for _, body := range []string{`{"id":"c","more":1}`, `{"ID":"c"}`, `{"id":"c","id":"d"}`, `{"id":"c"} `, `{"id":"c"}{}`, ``} {
		_, err := Decode(seal(TypeClusterID, body))
		if ok := body == `{"id":"c"} `; ok != (err == nil) {
			t.Errorf("%s: %v", body, err)
		}
	}
	// The largest topic fits.
	if _, err := Encode(createMany("big", 1, topic.MaxPartitions, 5)); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", MaxEntryBytes)
	if _, err := Encode(&ClusterID{ID: big}); !errors.Is(err, ErrEntryTooLarge) {
		t.Fatalf("too large: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, row := range Table() {
		raw, err := Encode(row.New())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		f.Add(raw[:len(raw)-crcBytes])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Decode(b)
		if len(b) == 0 {
			return
		}
		e, err := Decode(seal(Type(b[0]), string(b[1:])))
		if err != nil {
			return
		}
		raw, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(raw); err != nil {
			t.Fatalf("what was encoded does not decode: %v", err)
		}
		if _, err := ApplyEntry(newMemTx(), e); err != nil {
			t.Fatalf("an entry that decodes must apply or be refused: %v", err)
		}
	})
}
