package partlog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/narad-mq/narad/libs/record"
)

// FuzzParseSlot reads slots whose checksum is right and whose content is not.
func FuzzParseSlot(f *testing.F) {
	p := newProducers()
	p.at = 1
	p.streams[streamOf(1)] = producer{highest: record.Number{Seq: 4}}
	p.told[5] = told{seq: 2}
	good := appendSlot(nil, 2, &State{HWM: 9, Position: []byte("pos")}, 1, appendSnapshot(nil, snapshot{producers: p, epochs: epochs{{Epoch: 1, Start: 0}}}))
	f.Add(good[slotHead : len(good)-slotTrailer])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, payload []byte) {
		b := append([]byte(slotMagic), 0, 0, 0, 0, 0, 0, 0, 2)
		b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
		b = append(b, payload...)
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		generation, st, snap, err := parseSlot(b)
		if err != nil {
			return
		}
		again := appendSlot(nil, generation, &st, snap.start, appendSnapshot(nil, snap))
		_, st2, snap2, err := parseSlot(again)
		if err != nil || st2.HWM != st.HWM || !bytes.Equal(st2.Position, st.Position) || len(snap2.producers.streams) != len(snap.producers.streams) {
			t.Fatalf("not the same when written again: %v", err)
		}
	})
}
