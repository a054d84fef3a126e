package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/backup"
)

// TestBackup: a file of the name is a whole backup, or is not there.
func TestBackup(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	var raw bytes.Buffer
	if err := backup.Write(&raw, &backup.Header{ClusterID: "5d1c", AppliedIndex: 1088, StateBytes: 5}, bytes.NewBufferString("state")); err != nil {
		t.Fatal(err)
	}
	b.backup = raw.Bytes()
	dir := t.TempDir()
	file := filepath.Join(dir, "meta.backup")
	contains(t, sh.must("", "cluster", "backup", file), "cluster 5d1c at entry 1088", "no messages")
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, raw.Bytes()) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, stderr, exit := sh.run("", "cluster", "backup", file); exit != 1 {
		t.Errorf("over an existing file: exit %d, %s", exit, stderr)
	}
	b.backup = raw.Bytes()[:raw.Len()-1]
	if _, stderr, exit := sh.run("", "cluster", "backup", filepath.Join(dir, "cut")); exit != 1 {
		t.Errorf("one that was cut: exit %d, %s", exit, stderr)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("left in the directory: %v, %v", list, err)
	}
}
