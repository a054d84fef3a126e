package voter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
	"github.com/narad-mq/narad/libs/topic"
)

// secure gives a machine files of an authority.
func (m *machine) secure(ca *certs.Authority) {
	m.t.Helper()
	dir := m.t.TempDir()
	at, err := ca.Node(dir, m.cfg.NodeID, []string{"127.0.0.1"}, 30*time.Minute)
	if err != nil {
		m.t.Fatal(err)
	}
	m.cfg.TLS = tlsconf.Files{Cert: at.Cert, Key: at.Key, CA: filepath.Join(dir, "ca.pem")}
	if err := os.WriteFile(m.cfg.TLS.CA, ca.Cert, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func authority(t *testing.T) *certs.Authority {
	t.Helper()
	ca, err := certs.NewAuthority(t.Name(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// calm is how long a busy machine may keep a leader from being heard.
const calm = 2 * time.Second

// TestClusterOverTLS: three voters and a non-voter form, lose their leader and
// restart over TLS. A node of another authority and a plaintext one stay out, and
// neither the leader nor its term notices.
func TestClusterOverTLS(t *testing.T) {
	ca := authority(t)
	c := newVoters(t, 3)
	storage := c.joiner(t, "s1", topic.RoleStorage)
	all := append(append(cluster{}, c...), storage)
	for _, m := range all {
		m.secure(ca)
		// Slow to elect: a leader that goes in this test must not go because the machine was busy.
		m.cfg.Raft.Heartbeat, m.cfg.Raft.Election, m.cfg.Raft.LeaderLease = calm, calm, calm
		m.start()
	}
	all.waitReady(t)
	create(t, storage, "first")

	stranger, plain := c.joiner(t, "s2", topic.RoleStorage), c.joiner(t, "s3", topic.RoleStorage)
	stranger.secure(authority(t))
	stranger.start()
	plain.start()
	var leader *machine
	stays := false
	for round := 0; round < 3 && !stays; round++ { // a machine that stands still makes an election as well, but not each time
		leader = c.leader(t)
		before := leader.member.Raft().Stats().Term
		for i := range 10 { // each asks the voters several times meanwhile
			create(t, storage, fmt.Sprintf("meanwhile-%d-%d", round, i))
			<-time.After(fastMember().JoinEvery)
		}
		stays = leader.member.Raft().IsLeader() && leader.member.Raft().Stats().Term == before
	}
	if !stays {
		t.Error("the leader changes while strangers ask")
	}
	for _, out := range []*machine{stranger, plain} {
		if !out.member.Raft().Empty() || out.member.ClusterID() != "" {
			t.Errorf("%s was let in", out.cfg.NodeID)
		}
		if leader.member.View().Members().ByID[out.cfg.NodeID] != nil {
			t.Errorf("%s is a member of record", out.cfg.NodeID)
		}
		out.kill()
	}

	leader.kill()
	create(t, storage, "after-kill")
	leader.start()
	all.waitReady(t)
}

// TestMemberRefusesBadFiles: before it touches its directory, as a wrong setting.
func TestMemberRefusesBadFiles(t *testing.T) {
	m := newVoters(t, 1)[0]
	m.secure(authority(t))
	m.cfg.Advertise = "voter.example"
	_, err := New(Config{Member: m.cfg}, Deps{Registry: prometheus.NewRegistry()})
	if _, stat := os.Stat(m.cfg.DataDir); err == nil || !errors.Is(err, proc.ErrUsage) || !os.IsNotExist(stat) {
		t.Errorf("New = %v; data directory: %v", err, stat)
	}
}
