package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fencepost/client"
)

// What a worker can be told to do.
const (
	doAcquire = "acquire"
	doPut     = "put"   // write what it is told, with its token and without another look at its lease
	doCheck   = "check" // look at its lease
	doRelease = "release"
)

// An order is a line to a worker's stdin, a reply one from its stdout.
type order struct {
	Do    string `json:"do"`
	Value string `json:"value,omitempty"`
}

type reply struct {
	Token    uint64 `json:"token,omitempty"`
	Version  uint64 `json:"version,omitempty"`
	Held     bool   `json:"held,omitempty"`
	LeftMS   int64  `json:"left_ms,omitempty"` // until the worker itself gives the lease up
	Released bool   `json:"released,omitempty"`
	Status   int    `json:"status,omitempty"` // of a refusal
	Code     string `json:"code,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
}

// newDemoWorkerCommand is the process that A and B are: a program that uses the
// client package as any other would.
func newDemoWorkerCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "worker NAME", Short: "A writer of the demo", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.client()
			if err != nil {
				return err
			}
			defer c.Close()
			w := working{client: c, name: args[0]}
			in, out := json.NewDecoder(env.stdin), json.NewEncoder(env.stdout)
			for {
				var o order
				if err := in.Decode(&o); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return fmt.Errorf("read what to do: %w", err)
				}
				if err := out.Encode(w.do(cmd.Context(), o)); err != nil {
					return err
				}
			}
		},
	}
}

type working struct {
	client *client.Client
	name   string
	lease  *client.Lease
}

func (w *working) do(ctx context.Context, o order) (r reply) {
	var err error
	switch {
	case o.Do == doAcquire:
		if w.lease, err = w.client.Acquire(ctx, demoLease, client.Holder(w.name), client.TTL(demoTTL), client.Wait(demoBound)); err == nil {
			r.Token = w.lease.Token()
		}
	case w.lease == nil:
		err = errors.New("there is no lease yet")
	case o.Do == doPut:
		// Not by the lease's Guard, which looks at the clocks before it sends: A has
		// looked before it was stopped, and no look can be so late that nothing
		// comes after it.
		put, putErr := w.client.Put(ctx, demoKey, []byte(o.Value), client.Write{Token: w.lease.Token(), Lease: demoLease})
		if err = putErr; err == nil {
			r.Version = put.Version
		}
	case o.Do == doCheck:
		r.Held = w.lease.Err() == nil
		r.LeftMS = time.Until(w.lease.Deadline()).Milliseconds()
	case o.Do == doRelease:
		r.Released = w.lease.Err() == nil
		err = w.lease.Release(ctx)
	default:
		err = fmt.Errorf("what is %q?", o.Do)
	}
	var refused *client.Error
	if errors.As(err, &refused) {
		r.Status, r.Code, r.Reason = refused.Status, string(refused.Code), refused.Reason
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// A worker is the demo's end of such a process. For one goroutine.
type worker struct {
	*child
	name    string
	in      io.Writer
	replies chan reply
	errs    *strings.Builder // valid when it has exited
}

func (c *cast) startWorker(name string) (*worker, error) {
	w := &worker{name: name, replies: make(chan reply), errs: new(strings.Builder)}
	cmd := exec.Command(c.program, "demo", "worker", name, "--endpoints", strings.Join(c.urls(), ","))
	cmd.Stderr = w.errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, outEnd := io.Pipe()
	cmd.Stdout = outEnd
	if w.child, err = c.start(cmd); err != nil {
		return nil, err
	}
	w.in = in
	go func() {
		<-w.exited
		outEnd.Close()
	}()
	go func() {
		for d := json.NewDecoder(out); ; {
			var r reply
			if d.Decode(&r) != nil {
				out.Close() // what it says from now on has nobody to hear it
				return
			}
			select {
			case w.replies <- r:
			case <-w.exited:
			}
		}
	}()
	return w, nil
}

func (w *worker) send(o order) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := w.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("tell %s to %s: %w", w.name, o.Do, err)
	}
	return nil
}

func (w *worker) receive(ctx context.Context) (reply, error) {
	select {
	case r := <-w.replies:
		return r, nil
	case <-w.exited:
		return reply{}, fmt.Errorf("%s has ended by itself: %s", w.name, w.errs)
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// must is an order that has to be carried out.
func (w *worker) must(ctx context.Context, o order) (reply, error) {
	if err := w.send(o); err != nil {
		return reply{}, err
	}
	r, err := w.receive(ctx)
	if err == nil && r.Error != "" {
		err = fmt.Errorf("%s could not %s: %s", w.name, o.Do, r.Error)
	}
	return r, err
}
