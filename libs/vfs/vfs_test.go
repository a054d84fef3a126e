package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/vfs"
)

// TestContract holds both implementations to the same behaviour.
func TestContract(t *testing.T) {
	t.Run("os", func(t *testing.T) { contract(t, vfs.OS(), filepath.ToSlash(t.TempDir())) })
	t.Run("mem", func(t *testing.T) { contract(t, vfs.NewMem(), "/data") })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f vfs.File, s string, off int64) {
	t.Helper()
	if n, err := f.WriteAt([]byte(s), off); err != nil || n != len(s) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
}

func content(t *testing.T, f vfs.FS, name string) string {
	t.Helper()
	h, err := f.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	must(t, err)
	defer h.Close()
	size, err := h.Size()
	must(t, err)
	b := make([]byte, size)
	if _, err := h.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b)
}

func contract(t *testing.T, f vfs.FS, root string) {
	d := root + "/a/b"
	must(t, f.MkdirAll(d))
	must(t, f.MkdirAll(d))
	if _, err := f.Open(d + "/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open missing = %v", err)
	}
	h, err := f.Create(d + "/x")
	must(t, err)
	if _, err := f.Create(d + "/x"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create twice = %v", err)
	}
	write(t, h, "hello", 3)
	must(t, h.Sync())
	if got := content(t, f, d+"/x"); got != "\x00\x00\x00hello" {
		t.Errorf("content %q", got)
	}
	var b [8]byte
	if n, err := h.ReadAt(b[:], 6); n != 2 || err != io.EOF {
		t.Errorf("ReadAt behind the end = %d, %v", n, err)
	}
	must(t, h.Truncate(4))
	must(t, h.Truncate(6))
	if size, err := h.Size(); size != 6 || err != nil {
		t.Errorf("Size = %d, %v", size, err)
	}
	must(t, f.Rename(d+"/x", d+"/y"))
	must(t, f.SyncDir(d))
	if got := content(t, f, d+"/y"); got != "\x00\x00\x00h\x00\x00" {
		t.Errorf("content after truncate and rename %q", got)
	}
	must(t, f.Remove(d+"/y"))
	write(t, h, "still", 0)
	if n, _ := h.ReadAt(b[:5], 0); string(b[:n]) != "still" {
		t.Errorf("a removed open file reads %q", b[:n])
	}
	must(t, h.Close())
	if names, err := f.ReadDir(root + "/a"); err != nil || len(names) != 1 || names[0].Name() != "b" || !names[0].IsDir() {
		t.Errorf("ReadDir = %v, %v", names, err)
	}
	lock, err := f.Lock(root + "/lock")
	must(t, err)
	if _, err := f.Lock(root + "/lock"); err == nil {
		t.Error("locked twice")
	}
	must(t, lock.Close())
	lock, err = f.Lock(root + "/lock")
	must(t, err)
	must(t, lock.Close())
	if total, free, err := f.Usage(root); err != nil || total == 0 || free > total {
		t.Errorf("Usage = %d, %d, %v", total, free, err)
	}
	if got := vfs.UsedPercent(f, root); got < 0 || got > 100 {
		t.Errorf("UsedPercent = %d", got)
	}
	if info, err := f.Lstat(d); err != nil || !info.IsDir() {
		t.Errorf("Lstat of a directory = %v, %v", info, err)
	}
	must(t, f.RemoveAll(root+"/a"))
	must(t, f.RemoveAll(root+"/a"))
	if _, err := f.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lstat removed = %v", err)
	}
	if _, err := f.Stat(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat removed = %v", err)
	}
}

func TestCrashKeepsOnlyWhatIsSynced(t *testing.T) {
	m := vfs.NewMem()
	must(t, m.MkdirAll("d"))
	must(t, m.SyncDir("/"))
	a, err := m.Create("d/a")
	must(t, err)
	write(t, a, "one", 0)
	must(t, a.Sync())
	if got := content(t, m.CrashClone(nil), "d/a"); got != "-" {
		t.Errorf("the name was not synced, and reads %q", got)
	}
	must(t, m.SyncDir("d"))
	write(t, a, "two!", 0)
	must(t, m.Rename("d/a", "d/b"))
	c := m.CrashClone(nil)
	if x, y := content(t, c, "d/a"), content(t, c, "d/b"); x != "one" || y != "-" {
		t.Errorf("after the cut a=%q b=%q", x, y)
	}
	if got := content(t, m, "d/b"); got != "two!" {
		t.Errorf("the original reads %q", got)
	}
}

func TestCrashMayKeepDropOrTear(t *testing.T) {
	m := vfs.NewMem()
	a, err := m.Create("a")
	must(t, err)
	must(t, m.SyncDir("/"))
	write(t, a, string(bytes.Repeat([]byte{'x'}, 4*512)), 100)
	seen := map[string]bool{}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		seen[content(t, m.CrashClone(rng), "a")] = true
	}
	full := content(t, m, "a")
	if !seen[""] || !seen[full] || len(seen) < 10 {
		t.Errorf("%d outcomes, none %v, all %v", len(seen), seen[""], seen[full])
	}
}

func TestFaults(t *testing.T) {
	m := vfs.NewMem()
	var next vfs.Fault
	f := vfs.NewFault(m, func(vfs.Op) vfs.Fault { return next })
	a, err := f.Create("a")
	must(t, err)
	must(t, f.SyncDir("/"))
	next = vfs.Fault{Err: syscall.ENOSPC, Short: 2}
	if n, err := a.WriteAt([]byte("abcd"), 0); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("short write = %d, %v", n, err)
	}
	next = vfs.Fault{Err: syscall.EIO, Lost: true}
	if err := a.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync = %v", err)
	}
	next = vfs.Fault{}
	must(t, a.Sync())
	if now, later := content(t, f, "a"), content(t, m.CrashClone(nil), "a"); now != "ab" || later != "" {
		t.Errorf("after a failed sync: reads %q, after the cut %q", now, later)
	}
}

func TestCapacity(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(10)
	a, err := m.Create("a")
	must(t, err)
	if n, err := a.WriteAt(make([]byte, 16), 0); n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
	if _, free, _ := m.Usage("/"); free != 0 {
		t.Errorf("free = %d", free)
	}
	if got := vfs.UsedPercent(m, "/"); got != 100 {
		t.Errorf("a full disk is used to %d percent", got)
	}
	must(t, a.Truncate(4))
	if n, err := a.WriteAt(make([]byte, 6), 4); n != 6 || err != nil {
		t.Errorf("with room again: %d, %v", n, err)
	}
}
