package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// formEvery is how often a node without a cluster asks its peers.
const formEvery = 250 * time.Millisecond

// Formation is what nodes tell each other over HTTP, at FormationPath, before
// Raft can speak for them, and about their health after that.
type Formation struct {
	Name      string   `json:"name"`
	ID        string   `json:"id"`
	RaftAddr  string   `json:"raft_addr"`
	HTTPAddr  string   `json:"http_addr"`
	ClusterID string   `json:"cluster_id"`
	Members   []string `json:"members"` // Raft ids
	Index     uint64   `json:"index"`   // public, applied
	// LastContactMS is how long ago the node heard from the leader.
	LastContactMS int64 `json:"last_contact_ms"`
	// Unfit says that the node should not lead: its disk is full, or a certificate over.
	Unfit bool `json:"unfit,omitempty"`
	// Removed says that its cluster does not have the node any more.
	Removed bool `json:"removed,omitempty"`
}

const (
	// FormationPath answers GET with a Formation.
	FormationPath = "/v1/cluster/formation"
	// MembersPath takes a POST of a node that wants to join.
	MembersPath = "/v1/cluster/members"

	// What the API answers ErrRemoved with, and where it tells whose answer it is.
	removedCode   = "removed"
	clusterHeader = "Fencepost-Cluster"
)

// Formation is what this node tells the others.
func (n *Node) Formation() Formation {
	id, s := n.identity(), n.Status()
	f := Formation{
		Name: id.Name, ID: id.ID, RaftAddr: n.cfg.advertiseRaft(), HTTPAddr: n.cfg.HTTPAddr,
		ClusterID: id.ClusterID, Index: s.Index, LastContactMS: s.LastContact.Milliseconds(),
		Unfit: n.unfitness() != "", Removed: s.Removed,
	}
	if s.Removed {
		return f
	}
	for _, m := range id.Bootstrap {
		f.Members = append(f.Members, m.ID)
	}
	if mb := n.member.Load(); mb != nil {
		f.Members = nil
		for _, s := range mb.configuration().Servers {
			f.Members = append(f.Members, string(s.ID))
		}
	}
	return f
}

// findCluster asks the peers until this node is of a cluster: one that exists
// and has it or takes it, or else a new one. Only the node with the smallest
// name forms one, with all its peers, and only when all have answered and none
// has a cluster; so a wiped node can neither form a second one nor be an old
// voter again.
func (n *Node) findCluster(ctx context.Context) {
	waiting := ""
	for {
		id, why := n.formOnce(ctx)
		if id.ClusterID != "" {
			if err := n.enter(id); err != nil {
				n.log.Error("enter the cluster", "error", err)
				n.cfg.Exit(err.Error())
			}
			return
		}
		if why != waiting {
			n.log.Info("waiting for a cluster", "why", why)
			waiting = why
		}
		if !sleep(ctx, formEvery) {
			return
		}
	}
}

// enter makes the node a member of the cluster of this identity, first on disk.
func (n *Node) enter(id identity) error {
	if err := n.become(id); err != nil {
		return err
	}
	n.log.Info("entered a cluster", "cluster", id.ClusterID, "id", id.ID, "formed_it", len(id.Bootstrap) > 0)
	return n.join()
}

// formOnce asks all peers once. The identity it returns has a cluster id if the
// node is to enter a cluster; otherwise why says what it waits for.
func (n *Node) formOnce(ctx context.Context) (id identity, why string) {
	id = n.identity()
	answers, missing := n.askAll(ctx, n.cfg.Peers)
	formed := false // a peer has a cluster
	others := map[string]Formation{}
	for _, f := range answers {
		if f.ID != id.ID {
			others[f.ID] = f
		}
	}
	for _, f := range answers {
		if f.ClusterID == "" || f.ID == id.ID {
			continue
		}
		formed = true
		if slices.Contains(f.Members, id.ID) {
			id.ClusterID = f.ClusterID
			return id, ""
		}
		if err := n.askOneToJoin(ctx, n.cfg.url(f.HTTPAddr)); err != nil {
			why = fmt.Sprintf("asked node %s to join cluster %s: %v", f.Name, f.ClusterID, err)
			continue
		}
		id.ClusterID = f.ClusterID
		return id, ""
	}
	if formed {
		return id, why // never a second cluster beside it
	}
	if len(missing) > 0 {
		return id, "no answer from " + strings.Join(missing, ", ")
	}
	all := append([]Formation{n.Formation()}, slices.Collect(maps.Values(others))...)
	if len(all) < n.cfg.Expect {
		return id, fmt.Sprintf("%d of %d expected nodes are here", len(all), n.cfg.Expect)
	}
	slices.SortFunc(all, func(a, b Formation) int { return strings.Compare(a.Name, b.Name) })
	for i, f := range all {
		if i > 0 && f.Name == all[i-1].Name {
			return id, fmt.Sprintf("two nodes are named %q", f.Name)
		}
	}
	if all[0].ID != id.ID {
		return id, fmt.Sprintf("node %s is to form the cluster", all[0].Name)
	}
	id.ClusterID = randomHex(16)
	for _, f := range all {
		id.Bootstrap = append(id.Bootstrap, raftServer{ID: f.ID, Addr: f.RaftAddr})
	}
	return id, ""
}

// askAll asks all peers at once; missing are those without an answer.
func (n *Node) askAll(ctx context.Context, peers []string) (answers []Formation, missing []string) {
	got := make([]*Formation, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			if f, err := n.ask(ctx, p); err == nil {
				got[i] = &f
			}
		})
	}
	wg.Wait()
	for i, f := range got {
		if f == nil {
			missing = append(missing, peers[i])
		} else {
			answers = append(answers, *f)
		}
	}
	return answers, missing
}

func (n *Node) ask(ctx context.Context, url string) (Formation, error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var f Formation
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+FormationPath, nil)
	if err != nil {
		return f, err
	}
	resp, err := n.peers.Do(req)
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return f, fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return f, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&f)
}

// askToJoin asks the peers, and the members that it knows, one after another, to
// record this node; whichever leads does, and the others pass the question on or say
// that they cannot. ErrRemoved: the cluster has had it, and does not have it now.
func (n *Node) askToJoin(ctx context.Context) error {
	urls := slices.Clone(n.cfg.Peers)
	for _, url := range n.identity().Known {
		_, address, _ := strings.Cut(url, "://")
		url = n.cfg.url(address) // as it is now, if that was changed in between
		if !slices.Contains(urls, url) {
			urls = append(urls, url)
		}
	}
	err := ErrNoLeader
	for _, url := range urls {
		if url == n.cfg.httpURL() && len(urls) > 1 {
			continue
		}
		if err = n.askOneToJoin(ctx, url); err == nil || errors.Is(err, ErrRemoved) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (n *Node) askOneToJoin(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*askBound)
	defer cancel()
	self, id, member := n.self(), n.identity(), n.wasMember()
	body, err := json.Marshal(map[string]any{
		"name": self.Name, "id": self.Id, "raft_addr": self.RaftAddr, "http_addr": self.HttpAddr,
		"voter": self.Voter, "version": self.Version, "understands": self.Understands,
		"cluster_id": id.ClusterID, "member": member,
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(url, "/")+MembersPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := n.peers.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var problem struct{ Code string }
	// Only its own cluster can tell a node that it was removed.
	if json.Unmarshal(answer, &problem) == nil && problem.Code == removedCode && resp.StatusCode == http.StatusConflict &&
		member && resp.Header.Get(clusterHeader) == id.ClusterID {
		return fmt.Errorf("%w: %s says so", ErrRemoved, url)
	}
	return fmt.Errorf("%s answered %s: %s", url, resp.Status, answer)
}
