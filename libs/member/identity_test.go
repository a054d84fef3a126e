package member

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func mustOpen(t *testing.T, fs vfs.FS, dir, id string, role topic.MemberRole) *directory {
	t.Helper()
	d, err := openDirectory(fs, dir, id, role)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestIdentitySurvivesAndGuards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d := mustOpen(t, vfs.OS(), dir, "s1", topic.RoleStorage)
	if !d.empty || d.id.DiskID == 0 {
		t.Errorf("a new directory: %+v", d)
	}
	if info, err := os.Stat(filepath.Join(dir, identityFile)); err != nil || info.Mode().Perm() != vfs.FileMode {
		t.Errorf("mode of the identity: %v, %v", info, err)
	}
	if _, err := openDirectory(vfs.OS(), dir, "s1", topic.RoleStorage); err == nil {
		t.Error("two processes hold one directory")
	}
	disk := d.id.DiskID
	if err := d.setCluster("c1"); err != nil {
		t.Fatal(err)
	}
	if err := d.setCluster("c2"); !errors.Is(err, ErrWrongIdentity) {
		t.Errorf("another cluster: %v", err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, raftDir, "x"), vfs.DirMode); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   string
		role topic.MemberRole
	}{{"s2", topic.RoleStorage}, {"s1", topic.RoleGateway}} {
		if _, err := openDirectory(vfs.OS(), dir, c.id, c.role); !errors.Is(err, ErrWrongIdentity) {
			t.Errorf("%s as %s: %v", c.id, c.role, err)
		}
	}
	d = mustOpen(t, vfs.OS(), dir, "s1", topic.RoleStorage)
	if d.empty || d.id.DiskID != disk || d.id.ClusterID != "c1" {
		t.Errorf("reopened: %+v", d.id)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
}

func TestLostHalvesAreRefused(t *testing.T) {
	dir := t.TempDir()
	d := mustOpen(t, vfs.OS(), dir, "v1", topic.RoleVoter)
	if err := d.setCluster("c1"); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openDirectory(vfs.OS(), dir, "v1", topic.RoleVoter); !errors.Is(err, ErrDamagedIdentity) {
		t.Errorf("identity without raft state: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, raftDir, "x"), vfs.DirMode); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []string{"", "{", `{"format":2}`, `{"format":1,"node_id":"v1","role":"metastore-voter","disk_id":"0000000000000000","cluster_id":""}`} {
		if err := os.WriteFile(filepath.Join(dir, identityFile), []byte(damage), vfs.FileMode); err != nil {
			t.Fatal(err)
		}
		if _, err := openDirectory(vfs.OS(), dir, "v1", topic.RoleVoter); !errors.Is(err, ErrDamagedIdentity) && !errors.Is(err, ErrWrongIdentity) {
			t.Errorf("identity %q: %v", damage, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, identityFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := openDirectory(vfs.OS(), dir, "v1", topic.RoleVoter); !errors.Is(err, ErrDamagedIdentity) {
		t.Errorf("raft state without identity: %v", err)
	}
}

// TestIdentityOverPowerCuts cuts the power before each operation of making a
// directory and of storing the cluster: what is left is the old or the new one.
func TestIdentityOverPowerCuts(t *testing.T) {
	cut := errors.New("power cut")
	for at := int64(1); ; at++ {
		mem := vfs.NewMem()
		whole := true
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.N >= at {
				whole = false
				return vfs.Fault{Err: cut}
			}
			return vfs.Fault{}
		})
		var disk topic.ID64
		d, err := openDirectory(fs, "/data", "s1", topic.RoleStorage)
		if err == nil {
			disk = d.id.DiskID
			err = d.setCluster("c1")
		}
		left := mem.CrashClone(nil)
		if err := left.MkdirAll("/data/raft/x"); err != nil {
			t.Fatal(err)
		}
		again, reopened := openDirectory(left, "/data", "s1", topic.RoleStorage)
		switch {
		case whole && (err != nil || reopened != nil):
			t.Fatalf("without a fault: %v, %v", err, reopened)
		case disk != 0 && (reopened != nil || again.id.DiskID != disk):
			t.Errorf("cut at operation %d: an identity that was used is lost: %v", at, reopened)
		case err == nil && again.id.ClusterID != "c1":
			t.Errorf("cut at operation %d: the cluster was forgotten", at)
		}
		if whole {
			return
		}
	}
}
