package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fencepost/fsm/fsmpb"
)

// backupOf is a backup with its keys.
func backupOf(t testing.TB, s *State) (whole []byte, b *Backup, keys []*fsmpb.KeyRecord) {
	t.Helper()
	var out bytes.Buffer
	if n, err := s.Snapshot().WriteBackup(&out, s.ClusterID(), 1234); err != nil || n != int64(out.Len()) {
		t.Fatalf("wrote %d bytes of %d, %v", n, out.Len(), err)
	}
	b, err := ReadBackup(bytes.NewReader(out.Bytes()), func(k *fsmpb.KeyRecord) error { keys = append(keys, k); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), b, keys
}

func beginOf(id string, b *Backup) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: &fsmpb.RestoreBegin{Id: id, BackupIndex: b.Header.Index, TtlMs: 1000}}}
}

func chunkOf(id string, first int, keys ...*fsmpb.KeyRecord) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: &fsmpb.RestoreChunk{Id: id, First: uint64(first), Keys: keys}}}
}

func commitOf(id string, b *Backup, base uint64) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: &fsmpb.RestoreCommit{
		Id: id, Keys: b.Header.Keys, Checksum: b.Checksum, Base: base, BackupIndex: b.Header.Index,
	}}}
}

func isCode(t *testing.T, what string, o *fsmpb.Outcome, want fsmpb.Code) {
	t.Helper()
	if o.Code != want {
		t.Errorf("%s: %v %s, want %v", what, o.Code, o.Field, want)
	}
}

const (
	done      = fsmpb.Code_CODE_OK
	malformed = fsmpb.Code_CODE_INVALID_REQUEST
	gone      = fsmpb.Code_CODE_NOT_FOUND
)

// P5, P14: until the commit nothing of a restore is seen, and then all of it; a
// commit whose every word is not so changes nothing.
func TestP5_RestoreIsOneEntry(t *testing.T) {
	s := smallState(t)
	_, b, keys := backupOf(t, s)
	if len(keys) != 2 || b.NewestToken != 2 {
		t.Fatalf("%d keys, newest token %d: not the state that the test is about", len(keys), b.NewestToken)
	}
	mustApply(t, s, 50, writeOf(2, putOf("x", "newer"), putOf("z", "newer")))
	served := contents(s)
	isCode(t, "a chunk without a staging", mustApply(t, s, 50, chunkOf("a", 0, keys...)), gone)
	isCode(t, "begin", mustApply(t, s, 50, beginOf("a", b)), done)
	isCode(t, "another's chunk", mustApply(t, s, 50, chunkOf("b", 0, keys...)), gone)
	isCode(t, "chunk", mustApply(t, s, 50, chunkOf("a", 0, keys[0])), done)
	isCode(t, "the same again", mustApply(t, s, 50, chunkOf("a", 0, keys[0])), malformed)
	isCode(t, "out of order", mustApply(t, s, 50, chunkOf("a", 1, keys[1], keys[0])), malformed)
	isCode(t, "too early", mustApply(t, s, 50, commitOf("a", b, 0)), malformed)
	s = throughSnapshot(t, s)
	isCode(t, "the rest", mustApply(t, s, 50, chunkOf("a", 1, keys[1])), done)
	for what, change := range map[string]func(*fsmpb.RestoreCommit){
		"checksum": func(c *fsmpb.RestoreCommit) { c.Checksum++ },
		"keys":     func(c *fsmpb.RestoreCommit) { c.Keys-- },
		"base":     func(c *fsmpb.RestoreCommit) { c.Base++ },
		"index":    func(c *fsmpb.RestoreCommit) { c.BackupIndex++ },
		"above":    func(c *fsmpb.RestoreCommit) { c.Above = MaxToken },
	} {
		c := commitOf("a", b, 0)
		change(c.GetRestoreCommit())
		isCode(t, "commit with another "+what, mustApply(t, s, 50, c), malformed)
	}
	isCode(t, "another's commit", mustApply(t, s, 50, commitOf("b", b, 0)), gone)
	if contents(s) != served || s.RestoreFloor() != 0 {
		t.Fatalf("something is seen before the commit:\n%s\nwas\n%s", contents(s), served)
	}
	c := commitOf("a", b, 0)
	c.GetRestoreCommit().Request = &fsmpb.Request{Key: "k", Path: "restore", Digest: []byte("d")}
	events := applyEvents(t, s, 50, proto.CloneOf(c))
	if len(events) != 1 || events[0].Kind != EventRestored || events[0].Index != s.Index() || s.Index() < 1<<32 || s.Floor() != s.Index() {
		t.Fatalf("after the commit: index %d, floor %d, events %s", s.Index(), s.Floor(), eventsText(events))
	}
	if k, ok := s.Key("x"); !ok || string(k.Value) != "value" || k.Watermark != 2 {
		t.Errorf("x is %+v", k)
	}
	if _, ok := s.Key("z"); ok || s.Counts().Records != 2 {
		t.Errorf("%+v: what is not in the backup is still there", s.Counts())
	}
	at := s.RestoreFloor()
	if o := mustApply(t, s, 50, proto.CloneOf(c)); o.Code != done || o.Index != at || s.RestoreFloor() != at {
		t.Errorf("P11: repeated under its key: %v, floor %d", o, s.RestoreFloor())
	}
	c.GetRestoreCommit().Request.Digest = []byte("e")
	isCode(t, "its key with another backup", mustApply(t, s, 50, c), fsmpb.Code_CODE_KEY_REUSED)
}

// A staging that gets no more chunks goes, and the clock is kept moving for that.
func TestP9_RestoreThatBreaksOff(t *testing.T) {
	s := New()
	token := mustApply(t, s, 0, acquireOf("db", "h", 100)).Token
	mustApply(t, s, 0, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c", Node: &fsmpb.Node{Name: "n", Id: "i"}}}})
	mustApply(t, s, 0, writeOf(token, putOf("k", "v")))
	mustApply(t, s, 0, releaseOf("db", token))
	_, b, keys := backupOf(t, s)
	mustApply(t, s, KeepEndedMS, advanceOf())
	if s.HasDeadline() {
		t.Fatal("a deadline already")
	}
	mustApply(t, s, KeepEndedMS, beginOf("a", b))
	mustApply(t, s, KeepEndedMS+900, chunkOf("a", 0, keys...))
	if at, ok := s.NextRemovalMS(); !ok || at != KeepEndedMS+1900 || !s.HasDeadline() {
		t.Errorf("the staging goes at %d, %v", at, ok)
	}
	isCode(t, "a commit too late", mustApply(t, s, KeepEndedMS+1900, commitOf("a", b, 0)), gone)
	mustApply(t, s, KeepEndedMS+1900, advanceOf())
	if _, restoring := s.Staged(); restoring || s.HasDeadline() {
		t.Error("it is still there")
	}
}

// P5: numbers above the backup's index would not be below the floor.
func TestP5_BackupWithNumbersAboveItsIndex(t *testing.T) {
	for what, k := range map[string]*fsmpb.KeyRecord{
		"watermark":   {Key: "k", Present: true, Version: 1, Token: 1, Watermark: 11},
		"version":     {Key: "k", Present: true, Version: 11, Token: 1, Watermark: 1},
		"token":       {Key: "k", Present: true, Version: 1, Token: 11, Watermark: 1},
		"no mark":     {Key: "k", Present: true, Version: 1, Token: 1},
		"no version":  {Key: "k", Present: true, Token: 1, Watermark: 1},
		"value":       {Key: "k", Value: []byte("v"), Watermark: 1},
		"bad name":    {Key: "a//b", Watermark: 1},
		"no name":     {Watermark: 1},
		"long name":   {Key: strings.Repeat("k", maxNameBytes+1), Watermark: 1},
		"half a word": {Key: "\xff", Watermark: 1},
	} {
		s := New()
		mustApply(t, s, 0, beginOf("a", &Backup{Header: &fsmpb.BackupHeader{Index: 10}}))
		isCode(t, what, mustApply(t, s, 0, chunkOf("a", 0, k)), malformed)
		if n, _ := s.Staged(); n != 0 {
			t.Errorf("%s: staged", what)
		}
	}
}

// B43: every truncation and every flipped bit of a backup is found, and so are an
// empty file, a snapshot, and a format of later.
func TestP14_B43_DamagedBackups(t *testing.T) {
	s := smallState(t)
	whole, b, _ := backupOf(t, s)
	if b.Header.ClusterId != "c1" || b.Header.Index != s.Index() || b.Header.TakenUnixMs != 1234 || b.Header.Keys != 2 || b.Bytes != int64(len(whole)) {
		t.Errorf("%+v", b)
	}
	read := func(b []byte) error { _, err := ReadBackup(bytes.NewReader(b), nil); return err }
	for n := range whole {
		if err := read(whole[:n]); !errors.Is(err, ErrBadSnapshot) {
			t.Fatalf("cut to %d bytes of %d: %v", n, len(whole), err)
		}
	}
	damaged := bytes.Clone(whole)
	for i := range damaged {
		for bit := range 8 {
			damaged[i] ^= 1 << bit
			if err := read(damaged); !errors.Is(err, ErrBadSnapshot) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
			damaged[i] ^= 1 << bit
		}
	}
	if err := read(append(bytes.Clone(whole), 0)); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("a byte too many: %v", err)
	}
	if err := read(snapshotBytes(t, s)); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("a snapshot: %v", err)
	}
	if _, err := ReadSnapshot(bytes.NewReader(whole)); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("read as a snapshot: %v", err)
	}
}

// B43: backups whose checksum is right, but which no cluster has written.
func TestP14_B43_BackupsOfAnotherStructure(t *testing.T) {
	header := func(change func(*fsmpb.BackupHeader)) *fsmpb.Record {
		h := &fsmpb.BackupHeader{Version: BackupVersion, ClusterId: "c", Index: 10, Keys: 1, DataBytes: 1 + keyOverheadBytes}
		change(h)
		return &fsmpb.Record{Record: &fsmpb.Record_Backup{Backup: h}}
	}
	same := header(func(*fsmpb.BackupHeader) {})
	k := &fsmpb.KeyRecord{Key: "k", Watermark: 1}
	key := &fsmpb.Record{Record: &fsmpb.Record_Key{Key: k}}
	trailer := func(n uint64) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Trailer{Trailer: &fsmpb.Trailer{Records: n, Digest: keyOf(k).digest()}}}
	}
	seal := func(records ...*fsmpb.Record) []byte { return sealedAs(t, backupMagic, records...) }
	if _, err := ReadBackup(bytes.NewReader(seal(same, key, trailer(2))), nil); err != nil {
		t.Fatalf("one as it should be: %v", err)
	}
	for what, records := range map[string][]*fsmpb.Record{
		"nothing":        {},
		"no trailer":     {same, key},
		"no key":         {same, trailer(1)},
		"wrong count":    {same, key, trailer(3)},
		"twice":          {same, key, key, trailer(3)},
		"no header":      {key, trailer(1)},
		"two headers":    {same, same, key, trailer(3)},
		"after trailer":  {same, key, trailer(2), key},
		"a lease":        {same, {Record: &fsmpb.Record_Lease{Lease: &fsmpb.LeaseRecord{Name: "n"}}}, trailer(2)},
		"newer format":   {header(func(h *fsmpb.BackupHeader) { h.Version++ }), key, trailer(2)},
		"other bytes":    {header(func(h *fsmpb.BackupHeader) { h.DataBytes++ }), key, trailer(2)},
		"no cluster":     {header(func(h *fsmpb.BackupHeader) { h.ClusterId = "" }), key, trailer(2)},
		"index too high": {header(func(h *fsmpb.BackupHeader) { h.Index = MaxToken + 1 }), key, trailer(2)},
		"mark too high":  {header(func(h *fsmpb.BackupHeader) { h.Index = 0 }), key, trailer(2)},
	} {
		if _, err := ReadBackup(bytes.NewReader(seal(records...)), nil); !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("%s: %v, want ErrBadSnapshot", what, err)
		}
	}
}

// A key takes no more in a backup than the quota counts for it: what fits into the
// quota can be uploaded.
func TestBackupIsNoLargerThanTheQuotaSays(t *testing.T) {
	s := New()
	s.clusterID, s.index = "c", MaxToken
	for i := range 1000 {
		k := &Key{Key: fmt.Sprint(i), Present: i%2 == 0, Watermark: MaxToken}
		if k.Present {
			k.Value, k.ContentType, k.Version, k.Token = make([]byte, 200*(i%3)), "text/plain", MaxToken, MaxToken
		}
		s.setKey(k.Key, k)
	}
	whole, b, _ := backupOf(t, s)
	if limit := b.Header.DataBytes + BackupOverheadBytes; uint64(len(whole)) > limit {
		t.Errorf("%d bytes, counted as %d", len(whole), limit)
	}
	if most := b.Header.DataBytes + 500; uint64(len(whole)) > most {
		t.Errorf("%d bytes, want at most %d even without the allowance", len(whole), most)
	}
}
