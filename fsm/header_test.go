package fsm

import (
	"bytes"
	"errors"
	"testing"
)

// The header is read as ReadSnapshot would, and from the beginning alone.
func TestReadSnapshotHeader(t *testing.T) {
	s := New()
	s.clusterID, s.index, s.base, s.clockMS = "c", 1<<32+9, 1<<32, 77
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	h, err := ReadSnapshotHeader(bytes.NewReader(whole[:len(whole)-40]))
	if err != nil || h.ClusterId != "c" || h.Index != 1<<32+9 || h.Base != 1<<32 || h.ClockMs != 77 {
		t.Errorf("%v, %v", h, err)
	}
	for name, content := range map[string][]byte{
		"nothing":         nil,
		"cut short":       whole[:len(snapshotMagic)+4],
		"another file":    bytes.Repeat([]byte("x"), 100),
		"no record":       append([]byte(snapshotMagic), 0),
		"no header first": append([]byte(snapshotMagic), 2, 0x1a, 0), // a KeyRecord
	} {
		if h, err := ReadSnapshotHeader(bytes.NewReader(content)); !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
}
