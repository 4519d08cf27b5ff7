package httpapi

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"fencepost/cluster/certs"
	"fencepost/httpapi/wire"
)

const (
	dialBound       = 2 * time.Second
	answerBound     = 30 * time.Second // for the header of the answer; see exchange.patience
	idlePerNode     = 512              // connections kept for the next burst
	maxAnswerBytes  = 4 << 20          // of a mutation: documents, no values
	idleConnections = 90 * time.Second
)

func newNodeTransport(secure *certs.Source) *http.Transport {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialBound}).DialContext,
		MaxIdleConns:        0, // bounded per host, and hosts are few
		MaxIdleConnsPerHost: idlePerNode,
		IdleConnTimeout:     idleConnections,
		DisableCompression:  true, // the answer is passed on as it comes
	}
	if secure != nil {
		t.DialTLSContext = secure.DialTLS(dialBound)
	}
	return t
}

// forwarded says whether another node has forwarded this request.
func (x *exchange) forwarded() bool { return len(x.r.Header[wire.HeaderForwarded]) > 0 }

// elsewhere answers a request that only the leader can, if this node is not the
// leader; it returns false if it is. The body has been read, unless it is streamed.
func (x *exchange) elsewhere(mutation bool) bool {
	switch {
	case x.status.IsLeader:
		return false
	case x.forwarded():
		x.refuse(wire.CodeNoLeader, "the node that was taken for the leader is none; a request is forwarded once")
	case x.status.LeaderURL == "":
		x.refuse(wire.CodeNoLeader, "")
	case len(x.r.Header[wire.HeaderRoute]) > 0: // "local": ServeHTTP lets nothing else through
		path, query := rawTarget(x.r)
		x.w.Header()["Location"] = []string{strings.TrimSuffix(x.status.LeaderURL, "/") + path + query}
		x.w.Header()["Content-Length"] = []string{"0"}
		x.w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		x.forward(mutation)
	}
	return true
}

// forward passes the request on to the leader and its answer back.
//
// A failure is 503 only if no connection was made: from the moment that the
// transport has one, bytes may be on their way, and a mutation's outcome is
// unknown. The transport may by itself repeat a request on a new connection when
// an idle one turns out to be broken, but it keeps the rules here intact: it
// repeats what may have been written only if it carries an Idempotency-Key and
// no body that it cannot rewind, under that same key; and the note that there
// has been a connection outlives the repetition, so that its refused dial is not
// taken for the whole story. Likewise an answer that says "not accepted" speaks of
// the repetition alone.
func (x *exchange) forward(mutation bool) {
	var connections atomic.Int32                      // counted by the transport's goroutine
	watched, end := context.WithCancel(x.r.Context()) // ends when the client leaves,
	defer end()
	leader := x.status.LeaderURL
	if x.moves {
		leader = whoeverLeads
	}
	defer x.h.underway.add(leader, end)() // when another node leads,
	ctx := httptrace.WithClientTrace(watched, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connections.Add(1) },
	})
	upload := &countedUpload{r: x.r.Body}
	if x.streamed {
		upload.size = x.r.ContentLength
	}
	out, err := x.outgoing(ctx, upload)
	if err != nil {
		x.failed(err, mutation) // nothing was sent; the leader's address is no URL
		return
	}
	late := time.AfterFunc(answerBound+x.patience, end) // and when the leader does not answer
	resp, err := x.h.nodes.Transport.RoundTrip(out)
	late.Stop()
	if err != nil {
		x.h.log.Debug("forward to the leader", "request_id", x.id, "leader", x.status.LeaderURL, "connections", connections.Load(), "error", err)
		x.notForwarded(mutation && connections.Load() > 0 && !upload.halfSent())
		return
	}
	defer resp.Body.Close()
	if resp.Header.Get(wire.HeaderNode) == "" {
		// Whoever listens there is no fencepost; its 404 says nothing about leases.
		x.notForwarded(mutation)
		return
	}
	if mutation {
		late := resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusTooManyRequests
		if late && connections.Load() > 1 {
			x.notForwarded(true)
			return
		}
		x.passWhole(resp)
		return
	}
	x.passHeader(resp)
	if resp.ContentLength >= 0 {
		x.w.Header()["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
	x.w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(&x.w, resp.Body); err != nil {
		panic(http.ErrAbortHandler) // so that half an answer does not look whole
	}
}

func (x *exchange) notForwarded(unknown bool) {
	if unknown {
		x.refuse(wire.CodeOutcomeUnknown, "the connection to the leader broke: repeat it with the same Idempotency-Key to learn what became of it")
		return
	}
	x.refuse(wire.CodeNoLeader, "the leader cannot be reached")
}

// passWhole passes on the answer to a mutation once all of it is here: one that
// breaks off leaves the outcome unknown.
func (x *exchange) passWhole(resp *http.Response) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	if err != nil || len(body) > maxAnswerBytes {
		x.notForwarded(true)
		return
	}
	x.passHeader(resp)
	x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.w.WriteHeader(resp.StatusCode)
	_, _ = x.w.Write(body) // a client that is gone cannot be told so
}

// passHeader replaces the headers of this node's answer by those of the node
// that answered.
func (x *exchange) passHeader(resp *http.Response) {
	dropHopByHop(resp.Header)
	h := x.w.Header()
	clear(h)
	for name, values := range resp.Header {
		h[name] = values
	}
}

// outgoing is the request for the leader: the same bytes of path and query, the
// same headers and body, and who forwards it.
// upload is its body, if that is streamed.
func (x *exchange) outgoing(ctx context.Context, upload io.Reader) (*http.Request, error) {
	leader, err := url.Parse(x.status.LeaderURL)
	if err != nil {
		return nil, err
	}
	path, query := rawTarget(x.r)
	header := x.r.Header.Clone()
	dropHopByHop(header)
	header.Del("Expect") // the body is here
	header.Del(wire.HeaderServerMade)
	header[wire.HeaderForwarded] = []string{x.status.Name}
	header["X-Request-Id"] = []string{x.id}
	if x.key != "" {
		header[wire.HeaderIdempotencyKey] = []string{x.key}
	}
	if x.keyIsOurs {
		header[wire.HeaderServerMade] = []string{"true"}
	}
	if _, ok := header["User-Agent"]; !ok {
		header["User-Agent"] = nil // not Go's either
	}
	out := &http.Request{
		Method: x.r.Method, Header: header, Host: leader.Host, Body: http.NoBody,
		// An opaque URL is written as it is; any other would be escaped anew.
		URL: &url.URL{Scheme: leader.Scheme, Host: leader.Host, Opaque: path + query},
	}
	if x.streamed {
		out.Body, out.ContentLength = io.NopCloser(upload), x.r.ContentLength
	} else if len(x.body) > 0 {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	}
	return out.WithContext(ctx), nil
}

// dropHopByHop removes what speaks of one connection only.
func dropHopByHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			delete(h, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range [...]string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length",
	} {
		delete(h, name)
	}
}
