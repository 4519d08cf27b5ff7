package cluster

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"fencepost/cluster/bubble"
)

// heldLog is a log whose appends wait for leave, each for one value.
type heldLog struct {
	*raft.InmemStore
	leave chan error
}

func (h *heldLog) StoreLogs(logs []*raft.Log) error {
	if err := <-h.leave; err != nil {
		return err
	}
	return h.InmemStore.StoreLogs(logs)
}

const ledTerm = 3

// leadingOverlap is one in whose term the node leads, with entry 1 written.
func leadingOverlap(t *testing.T) (*overlap, *heldLog, *string) {
	h := &heldLog{raft.NewInmemStore(), make(chan error, 1)}
	exited := new(string)
	o := newOverlap(h, h, func(logs []*raft.Log) bool { return len(logs) < 10 }, func(why string) { *exited = why })
	if err := o.SetUint64([]byte("CurrentTerm"), ledTerm); err != nil {
		t.Fatal(err)
	}
	h.leave <- nil
	if err := o.StoreLog(&raft.Log{Index: 1, Term: ledTerm, Type: raft.LogNoop}); err != nil {
		t.Fatal(err)
	}
	o.lead(ledTerm)
	return o, h, exited
}

func entryOf(index, term uint64) *raft.Log {
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: []byte{byte(index)}}
}

// returned says whether a call has returned, once nothing moves any more.
func returned(call func()) func() bool {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// While a leader's write is under way its entry can be read, to be sent, but is
// applied by nobody, told to be committed to nobody, and survives no change of the
// term unwritten (P9, P10).
func TestP9_NothingCountsBeforeTheLeadersOwnWrite(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o, h, _ := leadingOverlap(t)
		if err := o.StoreLog(entryOf(2, ledTerm)); err != nil { // returns: the disk still writes
			t.Fatal(err)
		}
		var got raft.Log
		last, _ := o.LastIndex()
		if err := o.GetLog(2, &got); err != nil || got.Data[0] != 2 || last != 2 {
			t.Errorf("entry 2 to be sent: %v, %v; the last is %d", got, err, last)
		}
		if behind, _ := h.LastIndex(); behind != 1 {
			t.Fatalf("the disk has %d entries: nothing is under way", behind)
		}
		if o.committable() != 1 {
			t.Errorf("others may be told of commits up to %d, want 1", o.committable())
		}
		waits := map[string]func() bool{
			"applying the entry":  returned(func() { _ = o.durable(2) }),
			"the next append":     returned(func() { _ = o.StoreLog(entryOf(3, ledTerm)) }),
			"a new term":          returned(func() { _ = o.SetUint64([]byte("CurrentTerm"), ledTerm+1) }),
			"deleting it":         returned(func() { _ = o.DeleteRange(2, 2) }),
			"the stores' closing": returned(func() { _ = o.written() }),
		}
		for what, over := range waits {
			if over() {
				t.Errorf("%s did not wait for the write", what)
			}
		}
		if !returned(func() { _ = o.durable(1) })() {
			t.Error("entry 1 is written, and waited for all the same")
		}
		close(h.leave)
		for what, over := range waits {
			if !over() {
				t.Errorf("%s waits though all is written", what)
			}
		}
	})
}

// Only what can fail with the disk alone, of the term that this node leads, goes on
// beside the write.
func TestP9_OtherAppendsAreWaitedFor(t *testing.T) {
	many := make([]*raft.Log, 10)
	for i := range many {
		many[i] = entryOf(2+uint64(i), ledTerm)
	}
	for what, tt := range map[string]struct {
		logs []*raft.Log
		then func(*overlap)
	}{
		"a configuration":     {logs: []*raft.Log{{Index: 2, Term: ledTerm, Type: raft.LogConfiguration}}},
		"a barrier behind it": {logs: []*raft.Log{entryOf(2, ledTerm), {Index: 3, Term: ledTerm, Type: raft.LogBarrier}}},
		"another's entry":     {logs: []*raft.Log{entryOf(2, ledTerm-1)}},
		"no room":             {logs: many},
		"a newer term": {logs: []*raft.Log{entryOf(2, ledTerm)}, then: func(o *overlap) {
			_ = o.SetUint64([]byte("CurrentTerm"), ledTerm+1)
		}},
		"a vote": {logs: []*raft.Log{entryOf(2, ledTerm)}, then: func(o *overlap) {
			_ = o.SetUint64([]byte("LastVoteTerm"), ledTerm+1)
		}},
		"office taken too late": {logs: []*raft.Log{entryOf(2, ledTerm)}, then: func(o *overlap) {
			_ = o.SetUint64([]byte("CurrentTerm"), ledTerm+1)
			o.lead(ledTerm)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				o, h, _ := leadingOverlap(t)
				if tt.then != nil {
					tt.then(o)
				}
				over := returned(func() { _ = o.StoreLogs(tt.logs) })
				if over() {
					t.Error("it was not waited for")
				}
				h.leave <- nil
				if !over() {
					t.Error("it is waited for though it is written")
				}
			})
		})
	}
}

// A write that fails after Raft went on ends the process, and nothing that rests on
// it is answered.
func TestP9_AFailedWriteEndsTheProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		o, h, exited := leadingOverlap(t)
		if err := o.StoreLog(entryOf(2, ledTerm)); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("input/output error")
		h.leave <- broken
		if err := o.durable(2); !errors.Is(err, broken) || *exited == "" {
			t.Errorf("the entry: %v; exit: %q", err, *exited)
		}
		if err := o.StoreLog(entryOf(3, ledTerm)); !errors.Is(err, broken) {
			t.Errorf("the next append: %v", err)
		}
		if o.committable() != 1 {
			t.Errorf("others may be told of commits up to %d, want 1", o.committable())
		}
	})
}

// toldOf notes what it is to send.
type toldOf struct {
	transport
	commit uint64
}

func (t *toldOf) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) error {
	t.commit = args.LeaderCommitIndex
	return nil
}

func TestP9_FollowersAreToldOfNoCommitBeforeTheLeadersOwnWrite(t *testing.T) {
	for most, want := range map[uint64]uint64{4: 4, 7: 7, 9: 7, 0: 0} {
		to := new(toldOf)
		args := &raft.AppendEntriesRequest{LeaderCommitIndex: 7}
		if err := (told{to, func() uint64 { return most }}).AppendEntries("", "", args, nil); err != nil {
			t.Fatal(err)
		}
		if to.commit != want || args.LeaderCommitIndex != 7 {
			t.Errorf("of 7, with %d written, %d is told (and Raft's own is %d)", most, to.commit, args.LeaderCommitIndex)
		}
	}
}
