package sim

import (
	"context"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// rpcBound is how long a message of Raft, or its answer, is waited for.
const rpcBound = time.Second

// transport is Raft's way to the other nodes: the library's own in-memory one, over
// the links of the network. A message that is held back for longer than rpcBound is
// lost; so is an answer, and then the other side has done what it was asked.
type transport struct {
	*raft.InmemTransport
	net  *network
	host string
	life context.Context
}

func (t *transport) over(from, to string) error {
	ctx, cancel := context.WithTimeout(t.life, rpcBound)
	defer cancel()
	return t.net.link(from, to).pass(ctx)
}

func (t *transport) call(to raft.ServerAddress, send func() error) error {
	if err := t.over(t.host, string(to)); err != nil {
		return err
	}
	epoch := t.net.epoch(string(to))
	if err := send(); err != nil {
		return err
	}
	if t.net.epoch(string(to)) != epoch {
		return errUnreachable // it crashed meanwhile: what it says now it has not written
	}
	return t.over(string(to), t.host)
}

func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return t.call(to, func() error { return t.InmemTransport.AppendEntries(id, to, args, resp) })
}

func (t *transport) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.call(to, func() error { return t.InmemTransport.RequestVote(id, to, args, resp) })
}

func (t *transport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.call(to, func() error { return t.InmemTransport.RequestPreVote(id, to, args, resp) })
}

func (t *transport) TimeoutNow(id raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.call(to, func() error { return t.InmemTransport.TimeoutNow(id, to, args, resp) })
}

func (t *transport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.call(to, func() error { return t.InmemTransport.InstallSnapshot(id, to, args, resp, data) })
	if err == nil && resp.Success {
		t.net.installs.Add(1)
	}
	return err
}

// AppendEntriesPipeline: fencepost runs without.
func (t *transport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}
