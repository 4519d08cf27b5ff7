package model

import (
	"math"

	"fencepost/fsm/fsmpb"
)

// Staging is a backup that is being restored.
type Staging struct {
	ID                 string
	BackupIndex, TTLMS uint64
	DeadlineMS         uint64
	Keys               map[string]*Key
	Last               string // greatest of them
}

func (m *Machine) restoreBegin(c *fsmpb.RestoreBegin) *fsmpb.Outcome {
	if c.Id == "" {
		return invalid("id")
	}
	if c.TtlMs == 0 || c.TtlMs > 1<<40 {
		return invalid("ttl_ms")
	}
	m.Staging = &Staging{ID: c.Id, BackupIndex: c.BackupIndex, TTLMS: c.TtlMs, DeadlineMS: m.Clock + c.TtlMs, Keys: map[string]*Key{}}
	return &fsmpb.Outcome{}
}

func (m *Machine) restoreChunk(c *fsmpb.RestoreChunk) *fsmpb.Outcome {
	g := m.Staging
	if g == nil || g.ID != c.Id || g.DeadlineMS <= m.Clock {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	if int(c.First) != len(g.Keys) {
		return invalid("first")
	}
	last := g.Last
	for _, k := range c.Keys {
		bare := !k.Present && k.Version == 0 && k.Token == 0 && len(k.Value) == 0 && k.ContentType == ""
		whole := k.Present && k.Version > 0 && k.Token > 0
		if !nameOK(k.Key) || k.Key <= last || !bare && !whole || k.Watermark == 0 {
			return invalid("keys")
		}
		if k.Version > g.BackupIndex || k.Token > g.BackupIndex || k.Watermark > g.BackupIndex {
			return invalid("keys")
		}
		last = k.Key
	}
	for _, k := range c.Keys {
		g.Keys[k.Key] = &Key{
			Present: k.Present, Value: string(k.Value), ContentType: k.ContentType, Version: k.Version, Token: k.Token, Watermark: k.Watermark,
		}
	}
	g.Last, g.DeadlineMS = last, m.Clock+g.TTLMS
	return &fsmpb.Outcome{}
}

// restoreCommit takes the checksum on trust: how keys are summed up is not the
// model's business, and a commit that is refused for that alone must not be given to it.
func (m *Machine) restoreCommit(c *fsmpb.RestoreCommit) *fsmpb.Outcome {
	id, seen, reused := m.seen("", c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.Outcome
	}
	g := m.Staging
	if g == nil || g.ID != c.Id || g.DeadlineMS <= m.Clock {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	if int(c.Keys) != len(g.Keys) {
		return invalid("keys")
	}
	if c.Base != m.Base {
		return invalid("base")
	}
	if c.BackupIndex != g.BackupIndex {
		return invalid("backup_index")
	}
	to, ok := leap(m.Index, c)
	if !ok {
		return invalid("above")
	}
	m.Jump(to)
	m.Keys, m.firstBare = g.Keys, 0
	m.Staging = nil
	m.events = append(m.events, Event{Kind: Restored, Index: to})
	o := &fsmpb.Outcome{}
	m.remember(id, c.Request, o, m.Clock+keepRequestMS)
	return o
}

// leap: above the index and the backup's by 2^32, at least 2^22 for each second
// and what the operator says, within limits; and so that there are 2^32 numbers left
// below 2^53.
func leap(index uint64, c *fsmpb.RestoreCommit) (to uint64, ok bool) {
	const most = math.MaxUint32
	limit := float64(1<<53 - 1 - 1<<32)
	if c.SinceMs > most*1000 || float64(c.BackupIndex) > limit || float64(index) > limit || c.Above > 1<<53-1-1<<32-1<<42 {
		return 0, false
	}
	for _, at := range []uint64{index + 1<<32, c.BackupIndex + 1<<32, c.SinceMs * 4194304 / 1000, c.Above} {
		to = max(to, at)
	}
	return to, float64(to) <= limit
}
