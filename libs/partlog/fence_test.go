package partlog

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"path"
	"syscall"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func openFence(t testing.TB, fs vfs.FS) *Fence {
	t.Helper()
	f, err := OpenFence(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fenceFS(t testing.TB) *vfs.Mem {
	t.Helper()
	mem := newFS(t)
	if err := errors.Join(mem.MkdirAll(dir), mem.SyncDir(path.Dir(dir))); err != nil {
		t.Fatal(err)
	}
	return mem
}

func promise(t testing.TB, f *Fence, epoch topic.Epoch) {
	t.Helper()
	if err := f.Promise(epoch); err != nil {
		t.Fatal(err)
	}
}

func TestFenceGolden(t *testing.T) {
	mem := fenceFS(t)
	f := openFence(t, mem)
	if _, found := f.Promised(); found {
		t.Fatal("a promise in an empty directory")
	}
	for _, e := range []topic.Epoch{7, 7, 0x1234} {
		promise(t, f, e)
	}
	b, err := readWhole(mem, path.Join(dir, "fence"))
	if err != nil || len(b) != fenceGap+fenceSize {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	const first = "4e41524144464e31" + "0000000000000001" + "00000007" + "667571ac"
	const second = "4e41524144464e31" + "0000000000000002" + "00001234" + "1575ba72"
	if got := hex.EncodeToString(b[fenceGap:]); got != first {
		t.Errorf("slot 1\n got %s\nwant %s", got, first)
	}
	if got := hex.EncodeToString(b[:fenceSize]); got != second {
		t.Errorf("slot 0\n got %s\nwant %s", got, second)
	}
	if err := f.Promise(0x1233); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("an older promise: %v", err)
	}
	if e, found := openFence(t, mem).Promised(); e != 0x1234 || !found {
		t.Errorf("read back %d, %t", e, found)
	}
}

// Any one damaged slot leaves the other one; two make a new disk.
func TestDamagedFence(t *testing.T) {
	whole := appendFence(nil, 3, 9)
	for bit := range fenceSize * 8 {
		whole[bit/8] ^= 1 << (bit % 8)
		if _, _, ok := parseFence(whole); ok {
			t.Errorf("bit %d flipped and believed", bit)
		}
		whole[bit/8] ^= 1 << (bit % 8)
	}
	mem := fenceFS(t)
	f := openFence(t, mem)
	promise(t, f, 5)
	promise(t, f, 6)
	name := path.Join(dir, "fence")
	change(t, mem, name, func(b []byte) []byte { b[18] ^= 1; return b })
	if e, found := openFence(t, mem).Promised(); e != 5 || !found {
		t.Errorf("after damage of the newer slot: %d, %t", e, found)
	}
	change(t, mem, name, func(b []byte) []byte { b[fenceGap] ^= 1; return b })
	f = openFence(t, mem)
	if _, found := f.Promised(); found {
		t.Error("a promise from two damaged slots")
	}
	promise(t, f, 2)
	if e, _ := openFence(t, mem.CrashClone(nil)).Promised(); e != 2 {
		t.Errorf("promised anew: %d", e)
	}
}

// TestFencePowerCut: what was answered is never forgotten, whatever a power cut
// leaves, over restarts of the process that find more in the page cache than the
// disk has.
func TestFencePowerCut(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		mem := fenceFS(t)
		promised, asked := topic.Epoch(0), topic.Epoch(0)
		fail := false
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			if op.Changes() {
				for range 4 {
					f := openFence(t, mem.CrashClone(rng))
					if e, found := f.Promised(); found != (e > 0) || e < promised || e > asked {
						t.Fatalf("seed %d, %s: %d was promised, %d found, %d asked", seed, op.Kind, promised, e, asked)
					}
				}
			}
			if fail && rng.IntN(3) == 0 && (op.Kind == vfs.OpSync || op.Kind == vfs.OpWrite) {
				return vfs.Fault{Err: syscall.EIO, Short: rng.IntN(fenceSize), Lost: true}
			}
			return vfs.Fault{}
		})
		f := openFence(t, fs)
		for i := range 40 {
			if rng.IntN(4) == 0 {
				f = openFence(t, fs) // the process was killed
			}
			e, _ := f.Promised()
			e += topic.Epoch(rng.IntN(3))
			asked = max(asked, e, 1)
			fail = i%2 == 0
			if err := f.Promise(max(e, 1)); err == nil {
				promised = max(e, 1)
			}
		}
		if promised == 0 {
			t.Fatalf("seed %d: nothing was promised", seed)
		}
	}
}

// Operations that fail promise nothing, and may be repeated.
func TestFenceFaults(t *testing.T) {
	for n := 1; ; n++ {
		mem := fenceFS(t)
		count, hit := 0, false
		fs := vfs.NewFault(mem, func(vfs.Op) vfs.Fault {
			if count++; count == n {
				hit = true
				return vfs.Fault{Err: syscall.EIO, Lost: true}
			}
			return vfs.Fault{}
		})
		for _, e := range []topic.Epoch{3, 8} {
			f, err := OpenFence(fs, dir)
			if err != nil {
				f = openFence(t, fs)
			}
			if f.Promise(e) != nil {
				promise(t, f, e)
			}
			if got, found := openFence(t, mem.CrashClone(nil)).Promised(); got != e || !found {
				t.Fatalf("fault %d: %d found, %d promised", n, got, e)
			}
		}
		if !hit {
			break
		}
	}
}

// A closed fence touches no path any more: the directory may be another life's.
func TestAClosedFencePromisesNothing(t *testing.T) {
	mem := fenceFS(t)
	f := openFence(t, mem)
	promise(t, f, 7)
	f.Close()
	if err := errors.Join(mem.Rename(dir, dir+"-old"), mem.MkdirAll(dir)); err != nil {
		t.Fatal(err)
	}
	if err := f.Promise(9); !errors.Is(err, ErrClosed) {
		t.Errorf("promised: %v", err)
	}
	if in, err := mem.ReadDir(dir); err != nil || len(in) != 0 {
		t.Errorf("%v, %v", in, err)
	}
}
