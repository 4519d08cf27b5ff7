package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"fencepost/client"
	"fencepost/cluster/check"
)

// What a holder tells its parent, one line of JSON each.
const (
	newsAcquired = "acquired"
	newsWrote    = "wrote"   // a write under the lease was acknowledged
	newsLost     = "lost"    // the lease was, as the client says, whatever the call
	newsRefused  = "refused" // a write with the old token, after the loss
	newsSlipped  = "slipped" // such a write was accepted
	newsFailed   = "failed"  // a call without an answer
)

// news is one thing that a holder learned. Instants are of the machine's monotonic
// clock.
type news struct {
	What  string `json:"what"`
	Began int64  `json:"began"` // the call
	At    int64  `json:"at"`    // it was learned
	Token uint64 `json:"token,omitempty"`
	Text  string `json:"text,omitempty"`
}

// monotonic is the clock that all processes of a machine share.
func monotonic() int64 {
	var t syscall.Timespec
	const clockMonotonic = 1
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

// clockOffset is what a recorder's clock is behind the machine's, and by how much
// that may be wrong.
func clockOffset(r *check.Recorder) (offset, doubt int64) {
	doubt = 1<<63 - 1
	for range 100 {
		before := monotonic()
		now := r.Now()
		if after := monotonic(); after-before < doubt {
			offset, doubt = before-now, after-before
		}
	}
	return offset, doubt
}

// holder is the process that pauseHolder stops: it takes a lease, writes under it as
// fast as it can, and when it has lost it writes on with the old token for a while,
// as a program would that does not listen. It ends by TERM, and then writes its
// history, on the machine's clock, to a file.
func holder(args []string) error {
	f := flag.NewFlagSet("holder", flag.ContinueOnError)
	endpoints := f.String("endpoints", "", "URLs, separated by commas")
	name := f.String("name", "", "lease")
	ttl := f.Duration("ttl", time.Second, "of the lease")
	out := f.String("history", "", "file")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rec := check.NewRecorder()
	offset, doubt := clockOffset(rec)
	c, err := client.New(strings.Split(*endpoints, ","), client.WithAttemptTimeout(attemptBound),
		client.WithTransport(rec.Transport("holder", &http.Transport{MaxIdleConnsPerHost: 8})))
	if err != nil {
		return err
	}
	h := &holding{client: c, name: *name, ttl: *ttl, news: json.NewEncoder(os.Stdout)}
	for ctx.Err() == nil {
		if err := h.round(ctx); err != nil && ctx.Err() == nil {
			h.tell(news{What: newsFailed, Text: err.Error()})
			sleep(ctx, 100*time.Millisecond)
		}
	}
	c.Close()
	file, err := os.Create(*out)
	if err != nil {
		return err
	}
	return errors.Join(shifted(rec.History(), offset, doubt).Write(file), file.Close())
}

// shifted is a history on another clock. What is not known exactly makes exchanges
// longer, which claims less.
func shifted(h *check.History, by, doubt int64) *check.History {
	s := &check.History{Streams: h.Streams}
	for _, x := range h.Exchanges {
		y := *x
		y.Start += by - doubt
		if y.End != 0 {
			y.End += by + doubt
		}
		s.Exchanges = append(s.Exchanges, &y)
	}
	return s
}

type holding struct {
	client *client.Client
	name   string
	ttl    time.Duration
	writes int
	news   *json.Encoder
}

func (h *holding) tell(n news) {
	n.At = monotonic()
	h.news.Encode(n) // whoever reads it may have gone
}

// key is where holders of a lease write.
func holderKey(name string) string { return name + "/state" }

func (h *holding) value() []byte {
	h.writes++
	return fmt.Appendf(nil, "holder-%d", h.writes)
}

// round is one lease, from its acquisition to the last try with its old token.
func (h *holding) round(ctx context.Context) error {
	began := monotonic()
	l, err := h.client.Acquire(ctx, h.name, client.TTL(h.ttl), client.Wait(20*time.Second), client.Holder("holder"))
	if err != nil {
		return err
	}
	h.tell(news{What: newsAcquired, Began: began, Token: l.Token()})
	for ctx.Err() == nil {
		began := monotonic()
		_, err := h.client.Put(ctx, holderKey(h.name), h.value(), l.Guard(client.Latest))
		switch {
		case err == nil:
			h.tell(news{What: newsWrote, Began: began, Token: l.Token()})
		case errors.Is(err, client.ErrLost):
			h.tell(news{What: newsLost, Began: began, Token: l.Token(), Text: err.Error()})
			h.goOn(ctx, l.Token())
			return nil
		default:
			h.tell(news{What: newsFailed, Began: began, Token: l.Token(), Text: err.Error()})
		}
		sleep(ctx, 5*time.Millisecond)
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	return l.Release(bounded)
}

// goOn writes with a token that was lost.
func (h *holding) goOn(ctx context.Context, token uint64) {
	for range 5 {
		began := monotonic()
		_, err := h.client.Put(ctx, holderKey(h.name), h.value(), client.Write{Token: token})
		switch {
		case err == nil:
			h.tell(news{What: newsSlipped, Began: began, Token: token})
		case errors.Is(err, client.ErrStale):
			h.tell(news{What: newsRefused, Began: began, Token: token})
		default:
			h.tell(news{What: newsFailed, Began: began, Token: token, Text: err.Error()})
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// journal is what a holder has told so far.
type journal struct {
	mu  sync.Mutex // guards all
	all []news
}

func (j *journal) follow(r io.Reader) {
	d := json.NewDecoder(bufio.NewReader(r))
	for {
		var n news
		if d.Decode(&n) != nil {
			return
		}
		j.mu.Lock()
		j.all = append(j.all, n)
		j.mu.Unlock()
	}
}

// since are the news learned after an instant.
func (j *journal) since(at int64) (list []news) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, n := range j.all {
		if n.At > at {
			list = append(list, n)
		}
	}
	return list
}
