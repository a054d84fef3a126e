package voter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// common is what the program of m is started with.
func (m *machine) common() proc.Common {
	return proc.Common{NodeID: m.cfg.NodeID, DataDir: m.cfg.DataDir, RaftAddr: m.cfg.RaftBind, RPCAddr: m.cfg.RPCBind, Advertise: m.cfg.Advertise}
}

// founded runs the program with these settings and returns what it said.
func (m *machine) founded(t *testing.T, s FoundSettings) string {
	t.Helper()
	var out bytes.Buffer
	if err := FoundCluster(m.common(), s, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// TestTwoOfThreeVotersLostTheirDisks: the third one's disk is enough. It says what
// it is about to do and does nothing before that was confirmed; then everybody who
// still runs comes back without a restart, and the lost voters with empty disks.
func TestTwoOfThreeVotersLostTheirDisks(t *testing.T) {
	c := newVoters(t, 3)
	storage, gateway := c.joiner(t, "s1", topic.RoleStorage), c.joiner(t, "g1", topic.RoleGateway)
	c.start()
	running := cluster{storage, gateway}
	running.start()
	append(running, c...).waitReady(t)
	create(t, gateway, "kept")
	id := storage.member.ClusterID()
	survivor := c[1]
	survivor.waitTopic(t, "kept")
	for _, m := range c {
		m.kill()
	}
	from := survivor.cfg.DataDir
	for _, m := range c {
		m.wipe()
	}

	confirm := survivor.unconfirmed(t, from)
	said := survivor.founded(t, FoundSettings{Recover: from, Confirm: confirm})
	for _, v := range c {
		if !strings.Contains(said, "drops "+v.cfg.NodeID+" at "+v.cfg.RaftBind+" (voter)") {
			t.Errorf("it does not say that it drops %s:\n%s", v.cfg.NodeID, said)
		}
	}
	if err := FoundCluster(survivor.common(), FoundSettings{Recover: from, Confirm: confirm}, io.Discard); !errors.Is(err, member.ErrNotEmpty) {
		t.Errorf("a second time: %v", err)
	}
	survivor.start()
	cluster{survivor}.waitReady(t)
	running.waitReady(t)
	for _, m := range running {
		testkit.Poll(t, patience, m.cfg.NodeID+" registered as it runs", func() bool { return statusIn(survivor, m.cfg.NodeID) == topic.StatusAlive })
		if m.member.ClusterID() != id || survivor.member.ClusterID() != id {
			t.Errorf("the cluster is another one: %q, %q, was %q", m.member.ClusterID(), survivor.member.ClusterID(), id)
		}
		m.waitTopic(t, "kept")
	}
	testkit.Poll(t, patience, "the partition is led under a new epoch", func() bool {
		p, err := storage.member.View().Assignments("kept")
		return err == nil && p.List[0].Leader == "s1" && int64(p.List[0].LeaderEpoch) > time.Now().Add(-time.Hour).Unix()
	})
	create(t, gateway, "after")
	c[0].start()
	c[2].start()
	c.waitReady(t)
	for _, m := range []*machine{c[0], c[2]} {
		testkit.Poll(t, patience, m.cfg.NodeID+" votes again", func() bool { return voting(c.leader(t), m) })
	}
	survivor.kill() // and it may go, too
	rest := cluster{c[0], c[2]}
	rest.leader(t)
	create(t, gateway, "without-the-survivor")
}

// unconfirmed asks for a recovery without doing it, in every way, and returns what
// is to be confirmed.
func (m *machine) unconfirmed(t *testing.T, from string) string {
	t.Helper()
	var out bytes.Buffer
	err := FoundCluster(m.common(), FoundSettings{Recover: from}, &out)
	if !errors.Is(err, ErrNotConfirmed) {
		t.Errorf("without a confirmation: %v", err)
	}
	_, confirm, ok := strings.Cut(out.String(), "--confirm ")
	confirm, _, _ = strings.Cut(confirm, ".")
	var term, index uint64
	if n, err := fmt.Sscanf(confirm, "%d/%d", &term, &index); !ok || n != 2 || err != nil || term == 0 || index == 0 {
		t.Fatalf("nothing to confirm in:\n%s", out.String())
	}
	if err := FoundCluster(m.common(), FoundSettings{Recover: from, Confirm: "1/1"}, io.Discard); !errors.Is(err, ErrNotConfirmed) {
		t.Errorf("with a confirmation of something else: %v", err)
	}
	if said := m.founded(t, FoundSettings{Recover: from, DryRun: true}); !strings.Contains(said, "nothing was done") {
		t.Errorf("the dry run says:\n%s", said)
	}
	if _, err := os.Stat(m.cfg.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was done: %v", err)
	}
	return confirm
}

// waitTopic waits until the machine's own replica shows a topic.
func (m *machine) waitTopic(t *testing.T, name string) {
	t.Helper()
	testkit.Poll(t, patience, m.cfg.NodeID+" shows "+name, func() bool {
		_, err := m.member.View().Topic(name)
		return err == nil
	})
}

// TestFoundingRefuses: what does not go together, and what is in use.
func TestFoundingRefuses(t *testing.T) {
	c := newVoters(t, 1)
	c.start()
	c.waitReady(t)
	dir := c[0].cfg.DataDir
	other := newMachine(t, "v2", topic.RoleVoter)
	for name, s := range map[string]FoundSettings{
		"both":                    {Recover: dir, Restore: "file"},
		"a dry run of nothing":    {DryRun: true},
		"confirmation of nothing": {Confirm: "1/1"},
		"confirmation of a file":  {Restore: "file", Confirm: "1/1"},
	} {
		if err := FoundCluster(other.common(), s, io.Discard); !errors.Is(err, proc.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	anyPort := other.common()
	anyPort.RaftAddr = ":0"
	if err := FoundCluster(anyPort, FoundSettings{Recover: dir}, io.Discard); !errors.Is(err, proc.ErrUsage) {
		t.Errorf("a port that nobody can find: %v", err)
	}
	if err := FoundCluster(other.common(), FoundSettings{Recover: dir}, io.Discard); err == nil || errors.Is(err, ErrNotConfirmed) || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a directory in use: %v", err)
	}
	file := filepath.Join(t.TempDir(), "no-backup")
	if err := os.WriteFile(file, []byte("NARADBK1 and nothing else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := FoundCluster(other.common(), FoundSettings{Restore: file}, io.Discard); err == nil {
		t.Error("a file that is no backup was restored")
	}
	if _, err := os.Stat(other.cfg.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
}

// TestRestoreIntoAnEmptyCluster: all voters are lost, and the backup is older than
// what the members that still run have applied. They take it on, under their
// cluster's id; what it does not know is neither live nor said to have ended.
func TestRestoreIntoAnEmptyCluster(t *testing.T) {
	c := newVoters(t, 1)
	storage := c.joiner(t, "s1", topic.RoleStorage)
	c.start()
	storage.start()
	c.waitReady(t)
	append(cluster{storage}, c...).waitReady(t)
	create(t, storage, "kept")
	storage.waitTopic(t, "kept")
	file := storage.backup(t)
	create(t, storage, "later")
	storage.waitTopic(t, "later")
	later, err := storage.member.View().Topic("later")
	if err != nil {
		t.Fatal(err)
	}
	id := storage.member.ClusterID()
	c[0].kill()
	c[0].wipe()
	if said := c[0].founded(t, FoundSettings{Restore: file}); !strings.Contains(said, id) || !strings.Contains(said, "1 topics, 1 partitions") {
		t.Errorf("it says:\n%s", said)
	}
	c[0].start()
	c.waitReady(t)
	testkit.Poll(t, patience, "s1 registered", func() bool { return statusIn(c[0], "s1") == topic.StatusAlive })
	testkit.Poll(t, patience, "s1 has taken the backup on", func() bool {
		_, err := storage.member.View().Topic("later")
		return err != nil
	})
	storage.waitTopic(t, "kept")
	if storage.member.View().Ended(later.Incarnation) || storage.member.ClusterID() != id || c[0].member.ClusterID() != id {
		t.Errorf("ended %v; cluster %q and %q, was %q", storage.member.View().Ended(later.Incarnation), storage.member.ClusterID(), c[0].member.ClusterID(), id)
	}
	create(t, storage, "later") // another life of the name
}

func (m *machine) backup(t *testing.T) string {
	t.Helper()
	var b *raftnode.Backup
	var err error
	testkit.Poll(t, patience, m.cfg.NodeID+" has caught up and opens a backup", func() bool {
		b, err = m.member.Raft().Backup(t.Context(), "test", time.Now())
		return !errors.Is(err, raftnode.ErrNotCaughtUp)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	path := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
