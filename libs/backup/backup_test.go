package backup

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/narad-mq/narad/libs/metastate"
)

func example() *Header {
	return &Header{
		ClusterID: "5d1c9a70e2f84b36a1c0d4e8f7b6a592", AppliedIndex: 1088, Term: 7, TakenAt: "2026-11-29T20:04:05Z", TakenBy: "gateway-1",
		Release: "0.1.0", NewestEntryType: 7, Counts: metastate.Counts{Topics: 2, Assignments: 6, Members: 5, Ended: 1}, StateBytes: 5,
	}
}

func written(t testing.TB, h *Header, state string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, h, bytes.NewBufferString(state)); err != nil {
		t.Fatal(err)
	}
	if size, err := Size(h); err != nil || size != int64(b.Len()) {
		t.Fatalf("Size says %d (%v), written %d", size, err, b.Len())
	}
	return b.Bytes()
}

// TestGolden has the bytes of a backup; they are the same for ever.
func TestGolden(t *testing.T) {
	const header = `{"cluster_id":"5d1c9a70e2f84b36a1c0d4e8f7b6a592","applied_index":1088,"term":7,"taken_at":"2026-11-29T20:04:05Z",` +
		`"taken_by":"gateway-1","release":"0.1.0","newest_entry_type":7,` +
		`"counts":{"topics":2,"assignments":6,"members":5,"ended":1,"tombstones":0},"state_bytes":5}`
	want := "NARADBK1\x00\x00\x01\x0b" + header + fromHex(t, goldenHeaderCRC) + "state" + fromHex(t, goldenSum)
	if got := written(t, example(), "state"); string(got) != want {
		t.Errorf("written\n%q\nwant\n%q\n%x", got, want, got[len(got)-41:])
	}
	h, err := Verify(bytes.NewReader([]byte(want)))
	if err != nil || h != *example() {
		t.Errorf("read %+v, %v", h, err)
	}
}

const (
	goldenHeaderCRC = "90136d23"
	goldenSum       = "142d7e418dfe083c55a07c87b06e35bd5282cf688115f61553547858b64e9beb"
)

func fromHex(t testing.TB, s string) string {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestEveryDamageIsSeen: each byte changed, and the file cut at each length.
func TestEveryDamageIsSeen(t *testing.T) {
	whole := written(t, example(), "state")
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x20
		if _, err := Verify(bytes.NewReader(bad)); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, err := Verify(bytes.NewReader(whole[:i])); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	if _, err := Verify(bytes.NewReader(append(bytes.Clone(whole), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte more: %v", err)
	}
}

// TestReadsAsTheyCome: short reads, and a reader that fails.
func TestReadsAsTheyCome(t *testing.T) {
	whole := written(t, example(), "state")
	r, err := NewReader(iotest.OneByteReader(bytes.NewReader(whole)))
	if err != nil {
		t.Fatal(err)
	}
	if state, err := io.ReadAll(r); err != nil || string(state) != "state" {
		t.Errorf("state %q, %v", state, err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
	if _, err := Verify(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(whole)))); !errors.Is(err, iotest.ErrTimeout) || errors.Is(err, ErrDamaged) {
		t.Errorf("a reader that fails: %v", err)
	}
}

// TestStateOfAnotherLength: nothing is taken for whole that is not as announced.
func TestStateOfAnotherLength(t *testing.T) {
	if err := Write(io.Discard, example(), bytes.NewBufferString("stat")); err == nil {
		t.Error("a state that is too short was written")
	}
}

func FuzzReader(f *testing.F) {
	f.Add(written(f, example(), "state"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := Verify(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if size, err := Size(&h); err != nil || h.StateBytes > int64(len(raw)) {
			t.Errorf("accepted %+v of %d bytes (%d, %v)", h, len(raw), size, err)
		}
	})
}
