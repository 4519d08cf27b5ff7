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
func (s *State) repeated(principal string, id *fsmpb.Request) *fsmpb.Outcome {
	if !remembered(id) {
		return nil
	}
	key := requestKey(principal, id)
	r, ok := s.requests.Get(key)
	if !ok {
		return nil
	}
	if !bytes.Equal(r.id.Digest, id.Digest) {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	again := *r
	again.attempt++
	s.setRequest(key, &again)
	return r.outcome
}

// remember keeps the outcome of a request. live: it granted a lease, whose
// life the record shares.
func (s *State) remember(principal string, id *fsmpb.Request, o *fsmpb.Outcome, live bool) {
	if !remembered(id) || o.Code == fsmpb.Code_CODE_INVALID_REQUEST || o.Code == fsmpb.Code_CODE_FORBIDDEN {
		return // these speak of one attempt only
	}
	o.Index = s.index
	r := &request{principal: principal, id: id, attempt: 1, outcome: o}
	switch {
	case id.ServerMade:
		r.goneMS = s.clockMS + KeepServerMadeMS
	case !live:
		r.goneMS = s.clockMS + KeepRequestMS
	}
	s.setRequest(requestKey(principal, id), r)
}

// finish starts the time of a record that lived as long as its lease.
func (s *State) finish(key string, goneMS uint64) {
	if r, ok := s.requests.Get(key); ok && r.goneMS == 0 {
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
			s.removals.Delete(due{old.goneMS, dueRequest, key})
		}
	}
	if r == nil {
		return
	}
	r.hash = r.digest()
	s.sum += r.hash
	if r.goneMS != 0 {
		s.removals.Set(due{r.goneMS, dueRequest, key})
	}
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
