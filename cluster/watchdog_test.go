package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A process that was stopped in the middle of a write and goes on has no stalled
// disk; one that goes on and still waits for the write has.
func TestAPauseIsNoStalledDisk(t *testing.T) {
	s := watchStore(raft.NewInmemStore(), raft.NewInmemStore())
	var seen sightings
	bound := 5 * time.Second
	at := func(d time.Duration) int64 { return int64(d) }
	s.append.since.Store(at(time.Second))
	if s.stalled(&seen, at(time.Second), bound) || s.stalled(&seen, at(time.Hour), bound) {
		t.Error("a pause of the process was taken for a stalled disk")
	}
	for i := range time.Duration(looks) {
		if ended := s.stalled(&seen, at(time.Hour+i*bound/looks), bound); ended != (i == looks-2) {
			t.Fatalf("after %d more looks: %v", i+1, ended)
		} else if ended {
			break
		}
	}
	s.append.since.Store(at(2 * time.Hour)) // another write
	if s.stalled(&seen, at(2*time.Hour), bound) {
		t.Error("the time of one write was counted for the next")
	}
}

// While what a write waits for moves on, its time does not run out.
func TestAMovingDiskIsNotStalled(t *testing.T) {
	s := watchStore(raft.NewInmemStore(), raft.NewInmemStore())
	s.append.since.Store(1)
	s.moves()
	if since := s.append.since.Load(); time.Duration(since) < time.Second || s.compact.since.Load() != 0 {
		t.Errorf("the write counts from %s", time.Duration(since))
	}
}

// deletions notes the order in which a log is deleted.
type deletions struct {
	raft.InmemStore
	last uint64
	of   [][2]uint64
}

func (d *deletions) LastIndex() (uint64, error) { return d.last, nil }

func (d *deletions) DeleteRange(first, last uint64) error {
	d.of = append(d.of, [2]uint64{first, last})
	return nil
}

// A crash in the middle of a deletion leaves a log without a gap (P9): from the front
// the oldest entries go first, at the end the newest.
func TestP9_DeletionsLeaveNoGap(t *testing.T) {
	for _, tt := range []struct {
		first, last uint64
		want        [][2]uint64
	}{
		{1, 25_000, [][2]uint64{{1, 10_000}, {10_001, 20_000}, {20_001, 25_000}}},
		{10_000, 30_000, [][2]uint64{{20_001, 30_000}, {10_001, 20_000}, {10_000, 10_000}}},
		{1, 30_000, [][2]uint64{{20_001, 30_000}, {10_001, 20_000}, {1, 10_000}}},
		{30_000, 30_000, [][2]uint64{{30_000, 30_000}}},
	} {
		d := &deletions{last: 30_000}
		if err := watchStore(d, nil).DeleteRange(tt.first, tt.last); err != nil || !slices.Equal(d.of, tt.want) {
			t.Errorf("%d to %d: %v, want %v, %v", tt.first, tt.last, d.of, tt.want, err)
		}
	}
}
