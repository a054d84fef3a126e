package storage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	aliveID topic.Incarnation = 0x3f9a17c4e2b08d51
	endedID topic.Incarnation = 0x7c21000000000001
)

// inventory reads all pages of at most limit entries.
func (p *process) inventory(limit int) (all []nodeapi.InventoryEntry, pages int) {
	p.t.Helper()
	for after := ""; ; pages++ {
		if pages > 1000 {
			p.t.Fatal("the pages do not end")
		}
		res, err := p.node.Inventory(p.t.Context(), &nodeapi.InventoryRequest{After: after, Limit: limit})
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, res.Entries...)
		if after = res.Next; after == "" {
			return all, pages + 1
		}
	}
}

func mkdirs(t *testing.T, dirs ...string) {
	t.Helper()
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInventory: every kind of directory, by name, marker and content, on a real disk.
func TestInventory(t *testing.T) {
	dir := t.TempDir()
	store, err := topicdir.New(vfs.OS(), dir)
	if err != nil {
		t.Fatal(err)
	}
	open := func(id, judged topic.Incarnation) {
		if _, err := store.Open(topicdir.Request{Topic: "orders", Incarnation: id, Judged: judged, Verdict: topicdir.Gone}); err != nil {
			t.Fatal(err)
		}
	}
	open(endedID, 0)
	mkdirs(t, dir+"/topics/orders/p00002", dir+"/topics/orders/p00000", dir+"/topics/orders/other")
	if err := os.WriteFile(dir+"/topics/orders/p00002/state", make([]byte, 40), 0o600); err != nil {
		t.Fatal(err)
	}
	open(aliveID, endedID)
	mkdirs(t, dir+"/topics/old.quarantine", dir+"/topics/bare", dir+"/topics/a\xffb", dir+"/staging/half/p00001")
	if err := os.WriteFile(dir+"/topics/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, vfs.OS(), dir)
	c.verdict = metaapi.VerdictUnknown // so that the node itself removes nothing
	p := c.start()
	defer p.shutDown()

	got, _ := p.inventory(0)
	want := []nodeapi.InventoryEntry{
		{Kind: nodeapi.InventoryStaging, Name: "staging/half", Topic: "half", Partitions: []int32{1}},
		{Kind: nodeapi.InventoryForeign, Name: "topics/a\ufffdb", Partitions: []int32{}, Bytes: -1},
		{Kind: nodeapi.InventoryServing, Name: "topics/bare", Topic: "bare", Partitions: []int32{}},
		{Kind: nodeapi.InventoryServing, Name: "topics/file", Topic: "file", Partitions: []int32{}, Bytes: -1},
		{Kind: nodeapi.InventorySuperseded, Name: "topics/old.quarantine", Topic: "old", Partitions: []int32{}},
		{Kind: nodeapi.InventoryServing, Name: "topics/orders", Topic: "orders", Incarnation: aliveID, Partitions: []int32{}},
		{
			Kind: nodeapi.InventoryQuarantine, Name: "topics/orders.stale-" + endedID.String(), Topic: "orders", Incarnation: endedID,
			Partitions: []int32{0, 2}, Bytes: 40,
		},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if fmt.Sprintf("%+v", got[i]) != fmt.Sprintf("%+v", want[i]) {
			t.Errorf("got  %+v\nwant %+v", got[i], want[i])
		}
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		paged, pages := p.inventory(limit)
		if fmt.Sprint(paged) != fmt.Sprint(got) || pages != (len(want)+limit-1)/limit {
			t.Errorf("limit %d, %d pages: %+v", limit, pages, paged)
		}
	}
	for _, token := range []string{"*", "a", string(make([]byte, 2000))} {
		if _, err := p.node.Inventory(t.Context(), &nodeapi.InventoryRequest{After: token}); !problem.HasCode(err, problem.InvalidRequest) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// TestInventoryOfManyPartitions: a page ends early rather than grow past its
// bound, and the next one goes on.
func TestInventoryOfManyPartitions(t *testing.T) {
	mem := vfs.NewMem()
	c := newCluster(t, mem, "data")
	const topics = 70
	for i := range topics {
		at := fmt.Sprintf("data/topics/t%02d", i)
		for p := range topic.MaxPartitions {
			if err := mem.MkdirAll(topicdir.PartitionDir(at, int32(p))); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := c.start()
	defer p.shutDown()
	all, pages := p.inventory(0)
	if len(all) != topics || pages != 2 {
		t.Errorf("%d entries in %d pages", len(all), pages)
	}
	for _, e := range all {
		if len(e.Partitions) != topic.MaxPartitions || !slices.IsSorted(e.Partitions) {
			t.Errorf("%s: %d partitions", e.Name, len(e.Partitions))
		}
	}
}

// TestInventoryWithABadDirectory: what cannot be read is listed as such, and the rest is listed.
func TestInventoryWithABadDirectory(t *testing.T) {
	for _, bad := range []string{"data/topics/b/incarnation", "data/topics/b/p00000"} {
		mem := vfs.NewMem()
		faulty := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Path == bad && (op.Kind == vfs.OpOpen || op.Kind == vfs.OpReadDir) {
				return vfs.Fault{Err: &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: errors.New("bad sector")}}
			}
			return vfs.Fault{}
		})
		c := newCluster(t, faulty, "data")
		for _, name := range []string{"a", "b", "c"} {
			if err := mem.MkdirAll(filepath.Join("data/topics", name, "p00000")); err != nil {
				t.Fatal(err)
			}
		}
		p := c.start()
		all, _ := p.inventory(0)
		if len(all) != 3 || all[0].Unreadable || !all[1].Unreadable || all[2].Unreadable {
			t.Errorf("%s: %+v", bad, all)
		}
		p.shutDown()
	}
}
