package nodeapi

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// golden is the documented form of each sample. It changes only together with
// the version byte.
var golden = map[string]string{
	"commit request": "01" + "066f7264657273" + "3f9a17c4e2b08d51" + "03" + "0102030405060708" + "00000009" + "6261746368",
	"commit reply":   "01" + "00000009" + "d00f" + "01" + "00" + "07",
	"claim request": "01" + "09676174657761792d31" + "02" +
		"066f7264657273" + "0000000000000005" + "01" +
		"02" + "00" + "0000000000000006" + "00000007" + "ff07" + "0000000000000008" + "80000000" +
		"02" + "010100" + "e807" + "80808008" + "80dccc14" +
		"05656d707479" + "0000000000000000" + "00" + "00" + "00",
	"claim reply": "01" + "09" + "69642d61" + "69642d6262" + "03" + "02" +
		"02" + "00" + "05" + "03" +
		"02" +
		"03" + "4d" + "00000009" + "0102030405060708090a0b0c" + "80a0bfe9d666" + "02" + "b0ea01" + "04" + "05" + "6669727374" +
		"03" + "4e" + "00000009" + "0c0000000000000000000000" + "01" + "01" + "e807" + "00" + "06" + "7365636f6e64" +
		"00" +
		"01" +
		"04" + "80808080808080" + "02" + "00000009" + "000000000000000000000000" + "00" + "8080808004" + "808080808020" + "05" + "01" + "00" +
		"01" + "01" + "00",
	"settle request": "01" + "02" +
		"066f7264657273" + "3f9a17c4e2b08d51" + "03" + "056f74686572" + "0000000000000001" + "00" +
		"04" +
		"00" + "01" + "05" + "00000009" + "010000000000000000000000" + "00" +
		"01" + "02" + "06" + "00000009" + "020000000000000000000000" + "e0d403" +
		"00" + "03" + "808080808020" + "00000009" + "030000000000000000000000" + "01" +
		"00" + "04" + "00" + "00000000" + "000000000000000000000000" + "00",
	"settle reply": "01" + "04" + "00" + "01" + "02" + "00",
	"read request": "01" + "066f7264657273" + "3f9a17c4e2b08d51" + "03" + "0102030405060708" + "00000009" + "01" + "22" + "e807" + "80808004" + "01",
	"read reply": "01" + "04" + "0a" + "12" + "08" + "69642d61" + "69642d62" + "02" +
		"02" + "22" + "04" + "05" + "6669727374" +
		"04" + "24" + "04" + "06" + "7365636f6e64",
}

// bodies has the codec of each body.
var bodies = []struct {
	name   string
	sample any
	encode func([]byte, any) []byte
	decode func([]byte) (any, error)
}{
	body("commit request", commitRequest, func(b []byte, r *CommitRequest) []byte { return append(appendCommitHead(b, r), r.Batch...) }, decodeCommit),
	body("commit reply", commitResult, appendCommitResult, decodeCommitResult),
	body("claim request", claimRequest, appendClaimRequest, decodeClaimRequest),
	body("claim reply", claimResult, appendClaimResult, decodeClaimResult),
	body("settle request", settleRequest, appendSettleRequest, decodeSettleRequest),
	body("settle reply", settleResult, appendSettleResult, decodeSettleResult),
	body("read request", readRequest, appendReadRequest, decodeReadRequest),
	body("read reply", readResult, appendReadResult, decodeReadResult),
}

func body[T any](name string, sample *T, encode func([]byte, *T) []byte, decode func([]byte) (*T, error)) struct {
	name   string
	sample any
	encode func([]byte, any) []byte
	decode func([]byte) (any, error)
} {
	return struct {
		name   string
		sample any
		encode func([]byte, any) []byte
		decode func([]byte) (any, error)
	}{
		name, sample,
		func(b []byte, v any) []byte { return encode(b, v.(*T)) },
		func(b []byte) (any, error) { return decode(b) },
	}
}

func TestGolden(t *testing.T) {
	for _, c := range bodies {
		if got := hex.EncodeToString(c.encode(nil, c.sample)); got != golden[c.name] {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, golden[c.name])
		}
	}
}

// TestTornBodies cuts and extends every body at every byte: no such body is
// read as something else. (A batch at the end of a commit has a checksum of its own.)
func TestTornBodies(t *testing.T) {
	for _, c := range bodies {
		whole := c.encode(nil, c.sample)
		for n := range whole {
			if c.name == "commit request" && n >= len(whole)-len(commitRequest.Batch) {
				break
			}
			if v, err := c.decode(whole[:n]); err == nil {
				t.Errorf("%s cut at %d was read as %+v", c.name, n, v)
			}
		}
		if c.name != "commit request" {
			if _, err := c.decode(append(whole, 0)); err == nil {
				t.Errorf("%s with a byte behind it was read", c.name)
			}
		}
		whole[0] = 2
		if _, err := c.decode(whole); err == nil {
			t.Errorf("%s of another version was read", c.name)
		}
	}
}

func TestIDsBelongToRecords(t *testing.T) {
	more := *readResult
	more.Records = more.Records[:1]
	whole := appendReadResult(nil, &more)
	// "04" + "id-a" becomes "05" + "id-a" + one byte that no record claims.
	spoilt := append(append(bytes.Clone(whole[:4]), 5), append([]byte("id-ax"), whole[9:]...)...)
	if _, err := decodeReadResult(spoilt); err == nil {
		t.Error("an id without a record was read")
	}
	short := append(append(bytes.Clone(whole[:4]), 3), append([]byte("id-"), whole[9:]...)...)
	if _, err := decodeReadResult(short); err == nil {
		t.Error("an id longer than what there is was read")
	}
}

func TestDecodedBatchIsAView(t *testing.T) {
	b := append(appendCommitHead(nil, commitRequest), commitRequest.Batch...)
	req, err := decodeCommit(b)
	if err != nil || &req.Batch[0] != &b[len(b)-len(req.Batch)] {
		t.Errorf("the batch was copied: %v", err)
	}
}

func TestCountsAskForNoMemory(t *testing.T) {
	// A small body that announces a million deliveries.
	evil := []byte{1, 0, 0xff, 0xff, 0x3f, 1, 0, 0}
	n := testing.AllocsPerRun(10, func() {
		if _, err := decodeClaimResult(evil); err == nil {
			t.Error("it was read")
		}
	})
	if n > 8 {
		t.Errorf("%v allocations", n)
	}
}

func TestManyRefs(t *testing.T) {
	req := &SettleRequest{}
	for i := range 1000 {
		req.Ops = append(req.Ops, SettleOp{Ref: topic.Ref{Topic: "t", Partition: int32(i % 300)}, Kind: SettleAck, Offset: int64(i)})
	}
	got, err := decodeSettleRequest(appendSettleRequest(nil, req))
	if err != nil || !reflect.DeepEqual(got, req) {
		t.Errorf("round trip over many partitions: %v", err)
	}
}

func fuzz(f *testing.F, name string) {
	for _, c := range bodies {
		if c.name != name {
			continue
		}
		f.Add(c.encode(nil, c.sample))
		f.Fuzz(func(t *testing.T, b []byte) {
			v, err := c.decode(b)
			if err != nil {
				return
			}
			again := c.encode(nil, v)
			w, err := c.decode(again)
			if err != nil || !reflect.DeepEqual(v, w) {
				t.Errorf("%x was read as %+v, and its own form as %+v, %v", b, v, w, err)
			}
			if !bytes.Equal(again, c.encode(nil, w)) {
				t.Errorf("%x has two forms", b)
			}
		})
	}
}

func FuzzCommitRequest(f *testing.F) { fuzz(f, "commit request") }
func FuzzCommitReply(f *testing.F)   { fuzz(f, "commit reply") }
func FuzzClaimRequest(f *testing.F)  { fuzz(f, "claim request") }
func FuzzClaimReply(f *testing.F)    { fuzz(f, "claim reply") }
func FuzzSettleRequest(f *testing.F) { fuzz(f, "settle request") }
func FuzzSettleReply(f *testing.F)   { fuzz(f, "settle reply") }
func FuzzReadRequest(f *testing.F)   { fuzz(f, "read request") }
func FuzzReadReply(f *testing.F)     { fuzz(f, "read reply") }
