package fsm

import (
	"bytes"

	"fencepost/fsm/fsmpb"
)

// request is a remembered mutation and the outcome that its entry decided.
type request struct {
	principal string
	id        *fsmpb.Request
	attempt   uint64
	outcome   *fsmpb.Outcome
	goneMS    uint64 // cluster time at which it leaves; 0: not while its lease lives
	hash      uint64
}

// requestKey tells requests apart by their key, what they were sent to, and
// whose they are. No part can contain the separator: principals and paths have
// no control characters, keys are visible ASCII. The key comes first because it
// is random: two of them differ in their first bytes, which is what a search
// compares.
func requestKey(principal string, r *fsmpb.Request) string {
	return r.Key + "\x00" + r.Path + "\x00" + principal
}

func remembered(r *fsmpb.Request) bool { return r != nil && r.Key != "" }

// repeated looks up what was decided about this request before (P11). It
// returns nil if the request is new, and key_reused if it is another request
// under a key that was used. Otherwise the attempt is counted.
func (s *State) repeated(principal string, id *fsmpb.Request) (o *fsmpb.Outcome, attempt uint64) {
	if o = s.Decided(principal, id); o == nil || o.Code == fsmpb.Code_CODE_KEY_REUSED {
		return o, 0
	}
	key := requestKey(principal, id)
	r, _ := s.requests.Get(key)
	again := *r
	again.attempt++
	s.setRequest(key, &again)
	return o, again.attempt
}

// Decided is the remembered outcome of this request; nil if it is new, key_reused if
// it is another request under a key that was used.
func (s *State) Decided(principal string, id *fsmpb.Request) *fsmpb.Outcome {
	if !remembered(id) {
		return nil
	}
	r, ok := s.requests.Get(requestKey(principal, id))
	if !ok {
		return nil
	}
	// Cancelled before it came, it has no digest yet, and needs none.
	if !bytes.Equal(r.id.Digest, id.Digest) && len(r.id.Digest) > 0 {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	return r.outcome
}

// remember keeps the outcome of a request. live: it granted a lease or a place
// in a queue, whose life the record shares.
func (s *State) remember(principal string, id *fsmpb.Request, o *fsmpb.Outcome, live bool) {
	if !remembered(id) || o.Code == fsmpb.Code_CODE_INVALID_REQUEST || o.Code == fsmpb.Code_CODE_FORBIDDEN {
		return // these speak of one attempt only
	}
	o.Index, o.Attempt = s.index, 1
	r := &request{principal: principal, id: id, attempt: 1, outcome: o}
	switch {
	case id.ServerMade && o.Code != fsmpb.Code_CODE_QUEUED:
		r.goneMS = s.clockMS + KeepServerMadeMS
	case !live:
		r.goneMS = s.clockMS + KeepRequestMS
	}
	s.setRequest(requestKey(principal, id), r)
}

// decide gives a request that waited, or was granted, its outcome. goneMS is as
// in request; a key that the server made is forgotten sooner.
func (s *State) decide(key string, o *fsmpb.Outcome, goneMS uint64) *fsmpb.Outcome {
	r, ok := s.requests.Get(key)
	if !ok {
		return o // a key that the server made, of a lease that has outlived it
	}
	next := *r
	next.outcome, next.goneMS = o, goneMS
	if r.id.ServerMade {
		next.goneMS = s.clockMS + KeepServerMadeMS
	}
	o.Index, o.Attempt = s.index, r.attempt
	s.setRequest(key, &next)
	return o
}

// finish starts the time of a record that lived as long as the lease with this
// token. A key that the server made may have been forgotten before its lease
// ended, and be another request's now.
func (s *State) finish(key string, token, goneMS uint64) {
	if r, ok := s.requests.Get(key); ok && r.goneMS == 0 && r.outcome.Code == fsmpb.Code_CODE_OK && r.outcome.Token == token {
		done := *r
		done.goneMS = goneMS
		s.setRequest(key, &done)
	}
}

func (s *State) setRequest(key string, r *request) {
	old, existed := replace(s.requests, key, r, r != nil)
	if existed {
		s.sum -= old.hash
		if old.goneMS != 0 {
			s.removals.Delete(due{at: old.goneMS, of: dueRequest, key: key})
		}
	}
	if r == nil {
		return
	}
	r.hash = r.digest()
	s.sum += r.hash
	if r.goneMS != 0 {
		s.removals.Set(due{at: r.goneMS, of: dueRequest, key: key})
	}
}

// RequestKey is how a Decision names a request.
func RequestKey(principal string, id *fsmpb.Request) string { return requestKey(principal, id) }

// Attempt is the number of the latest attempt of an acquire, and whether it is
// in a queue, or else was granted; ok is false if it has nothing that a Cancel
// would end.
func (s *State) Attempt(principal string, id *fsmpb.Request) (attempt uint64, queued, ok bool) {
	r, found := s.requests.Get(requestKey(principal, id))
	if !found || !bytes.Equal(r.id.Digest, id.Digest) {
		return 0, false, false
	}
	code := r.outcome.Code
	queued = code == fsmpb.Code_CODE_QUEUED
	return r.attempt, queued, queued || code == fsmpb.Code_CODE_OK
}

// Remembers says whether the outcome of this request is known: then it is
// answered even where a new one would be refused for want of room.
func (s *State) Remembers(principal string, id *fsmpb.Request) bool {
	if !remembered(id) {
		return false
	}
	_, ok := s.requests.Get(requestKey(principal, id))
	return ok
}
