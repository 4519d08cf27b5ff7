package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"fencepost/httpapi/wire"
)

// Transfer hands leadership to the member with this name, or to whichever is furthest
// if it is "", and returns the name of the node that leads then. ErrNotFound: no
// member has this name; an Error with [wire.CodeNotEligible]: it cannot lead now.
// Repeated after ErrUnknown without a name, it may hand leadership over once more.
func (c *Client) Transfer(ctx context.Context, to string) (leader string, err error) {
	q, err := jsonCall("transfer leadership", "/v1/cluster/transfer", wire.TransferRequest{To: to})
	if err != nil {
		return "", err
	}
	var r wire.Transferred
	_, err = c.into(ctx, q, &r)
	return r.Leader, err
}

// RemoveMember ends the membership of a node. ErrQuorum: the rest could not go on
// without it, which force overrides; ErrNotFound: no member has this name.
func (c *Client) RemoveMember(ctx context.Context, name string, force bool) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	q := &call{what: "remove member " + name, method: http.MethodDelete, path: withQuery("/v1/cluster/members/"+escape(name), query)}
	var r wire.MemberRemoved
	_, err := c.into(ctx, q, &r)
	var o *OutcomeError
	if errors.As(err, &o) && o.Unknown {
		// An attempt may have removed it, and now there is no such member.
		if e, ok := o.Last.(*Error); ok && e.Code == wire.CodeNotFound {
			return nil
		}
	}
	return err
}

// Join makes a node a member, or corrects its record. Nodes do so by themselves, if
// one of their peers is a member; this is for one whose peers are not.
func (c *Client) Join(ctx context.Context, node wire.JoinRequest) error {
	q, err := jsonCall("join "+node.Name, "/v1/cluster/members", node)
	if err != nil {
		return err
	}
	_, err = c.into(ctx, q, new(wire.Joined))
	return err
}
