package metastate

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// memTx is a state in memory. It refuses what a real transaction would not bear.
type memTx struct {
	data     map[Bucket]map[string]string
	scanning int
}

func newMemTx() *memTx {
	m := &memTx{data: map[Bucket]map[string]string{}}
	for _, b := range Buckets() {
		m.data[b] = map[string]string{}
	}
	return m
}

func (m *memTx) Get(b Bucket, key []byte) []byte {
	if v, ok := m.data[b][string(key)]; ok {
		return []byte(v)
	}
	return nil
}

func (m *memTx) Scan(b Bucket, prefix []byte, fn func(key, value []byte) bool) {
	m.scanning++
	defer func() { m.scanning-- }()
	var keys []string
	for k := range m.data[b] {
		if strings.HasPrefix(k, string(prefix)) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		if !fn([]byte(k), []byte(m.data[b][k])) {
			return
		}
	}
}

func (m *memTx) Put(b Bucket, key, value []byte) error {
	m.write(b, key)
	m.data[b][string(key)] = string(value)
	return nil
}

func (m *memTx) Delete(b Bucket, key []byte) error {
	m.write(b, key)
	delete(m.data[b], string(key))
	return nil
}

func (m *memTx) write(b Bucket, key []byte) {
	if m.scanning > 0 || m.data[b] == nil || len(key) == 0 || len(key) > 32768 {
		panic(fmt.Sprintf("bad write to %s/%q", b, key))
	}
}

// dump is the whole state as text.
func (m *memTx) dump() string {
	var b strings.Builder
	for _, bucket := range Buckets() {
		m.Scan(bucket, nil, func(k, v []byte) bool {
			fmt.Fprintf(&b, "%s %q %s\n", bucket, k, v)
			return true
		})
	}
	return b.String()
}

// do applies an entry by way of its bytes.
func (m *memTx) do(t testing.TB, e Entry) Result {
	t.Helper()
	raw, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	res, err := Apply(m, raw)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// fatalf is what testing.T and rapid.T share.
type fatalf interface {
	Fatalf(format string, args ...any)
}

// checkInvariants checks what must hold between records after every entry.
func checkInvariants(t fatalf, m *memTx) {
	topics, err := AllTopics(m)
	if err != nil {
		t.Fatalf("topics: %v", err)
	}
	folded, assigned, moving, attached, replicas := 0, 0, 0, 0, map[string]bool{}
	live := map[topic.Incarnation]bool{}
	for i := range topics {
		top := &topics[i]
		if live[top.Incarnation] || IsEnded(m, top.Incarnation) {
			t.Fatalf("incarnation %s of %s lives twice or has ended", top.Incarnation, top.Name)
		}
		live[top.Incarnation] = true
		if got := string(m.Get(BucketLive, incarnationKey(top.Incarnation))); got != top.Name {
			t.Fatalf("%s: incarnation leads to %q", top.Name, got)
		}
		if got := string(m.Get(BucketFolded, []byte(topic.FoldName(top.Name)))); got != top.Name {
			t.Fatalf("%s: folded name leads to %q", top.Name, got)
		}
		folded++
		list, err := AssignmentsByName(m, top.Name)
		if err != nil {
			t.Fatalf("assignments of %s: %v", top.Name, err)
		}
		if why := checkSets(top, list); why != "" {
			t.Fatalf("%s: %s", top.Name, why)
		}
		assigned += len(list)
		children, why := checkLinks(m, top)
		if why != "" {
			t.Fatalf("%s: %s", top.Name, why)
		}
		attached += children
		if why := checkMoves(m, list); why != "" {
			t.Fatalf("%s: %s", top.Name, why)
		}
		for i := range list {
			if mv, err := moveOf(m, list[i].Ref); err == nil && mv != nil {
				moving++
			}
		}
		for _, a := range list {
			for _, r := range slices.Concat(a.Replicas, a.Observers) {
				replicas[string(replicaKey(r.Node, top.Name))] = true
			}
		}
	}
	if len(m.data[BucketLive]) != folded || len(m.data[BucketFolded]) != folded || len(m.data[BucketAssignments]) != assigned || len(m.data[BucketReplicas]) != len(replicas) {
		t.Fatalf("left over: %d folded names for %d topics, %d assignments for %d, %d replica keys for %d",
			len(m.data[BucketFolded]), folded, len(m.data[BucketAssignments]), assigned, len(m.data[BucketReplicas]), len(replicas))
	}
	if len(m.data[BucketAttachments]) != attached {
		t.Fatalf("%d attachments of %d children", len(m.data[BucketAttachments]), attached)
	}
	if len(m.data[BucketMoves]) != moving {
		t.Fatalf("%d moves, %d of them of partitions that are there", len(m.data[BucketMoves]), moving)
	}
	for k := range replicas {
		if _, ok := m.data[BucketReplicas][k]; !ok {
			t.Fatalf("no replica key %q", k)
		}
	}
}

// checkMoves checks that every move is of a partition that is there, and that an
// observer has a move.
func checkMoves(m *memTx, list []topic.Assignment) string {
	for i := range list {
		a := &list[i]
		mv, err := moveOf(m, a.Ref)
		switch {
		case err != nil:
			return err.Error()
		case len(a.Observers) > 1, len(a.Observers) == 1 && (mv == nil || mv.To != a.Observers[0].Node):
			return "observers without a move: " + a.String()
		}
	}
	return ""
}

// checkLinks checks that parents and children name each other, each with an
// attachment, and returns how many children the topic has.
func checkLinks(m *memTx, t *topic.Topic) (int, string) {
	for _, c := range t.Children {
		child, err := TopicByName(m, c.Name)
		at, aerr := AttachmentByEpoch(m, c.AttachEpoch)
		switch {
		case err != nil || aerr != nil:
			return 0, fmt.Sprint(err, aerr)
		case child == nil || child.Incarnation != c.Incarnation || child.Parent == nil || child.Parent.AttachEpoch != c.AttachEpoch:
			return 0, c.Name + " does not know its parent"
		case at == nil || at.Parent != t.Name || at.ParentIncarnation != t.Incarnation || at.Child != c || IsEnded(m, c.AttachEpoch):
			return 0, c.Name + " has no attachment"
		case len(child.Children) > 0:
			return 0, c.Name + " has children itself"
		}
	}
	if t.Parent != nil {
		p, err := TopicByName(m, t.Parent.Name)
		if err != nil || p == nil {
			return 0, "its parent is gone"
		}
		if c, ok := p.ChildNamed(t.Name); !ok || c.AttachEpoch != t.Parent.AttachEpoch || p.Incarnation != t.Parent.Incarnation {
			return 0, "its parent does not know it"
		}
	}
	return len(t.Children), ""
}

// checkSets is checkAssignments for a topic that has lived: a replica set may
// have grown or shrunk since.
func checkSets(top *topic.Topic, list []topic.Assignment) string {
	if len(list) != top.Partitions {
		return fmt.Sprintf("%d assignments for %d partitions", len(list), top.Partitions)
	}
	for i := range list {
		one := *top
		one.ReplicationFactor = len(list[i].Replicas)
		if why := checkAssignment(&one, i, &list[i]); why != "" || one.ReplicationFactor == 0 {
			return fmt.Sprintf("assignment %d: %s", i, why)
		}
	}
	return ""
}
