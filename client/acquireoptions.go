package client

import (
	"fmt"
	"maps"
	"time"

	"fencepost/httpapi/wire"
)

// An AcquireOption says what is asked for. Durations go out in whole
// milliseconds, rounded up. A value that cannot be meant is refused as the
// cluster refuses it, by an *Error with invalid_request, and nothing is sent.
type AcquireOption func(*acquisition) error

// acquisition is what Acquire and Grant ask for.
type acquisition struct {
	wire.AcquireRequest
	wait time.Duration
}

// TTL is how long the lease outlives its last renewal: 100 ms to 24 h, the
// cluster's default of 10 s without this option. It bounds how long others wait
// for a holder that has died, and how long a holder survives without an answer.
func TTL(d time.Duration) AcquireOption {
	return func(a *acquisition) error {
		if d <= 0 {
			return invalid("ttl_ms", "a TTL must be positive, not %s", d)
		}
		a.TTLMS = milliseconds(d)
		return nil
	}
}

// Wait is how long to stand in the queue of a lease that is not free: up to 5
// min, not at all without this option. The queue is first come, first served
// (P12), and the place is kept over broken connections and new leaders.
func Wait(d time.Duration) AcquireOption {
	return func(a *acquisition) error {
		if d < 0 {
			return invalid("wait_ms", "a wait must not be negative, as %s is", d)
		}
		a.wait, a.WaitMS = d, milliseconds(d)
		return nil
	}
}

// Holder is a label for people, up to 256 bytes. It is no identity: two processes
// with one label are two holders, told apart by their tokens. Without this option
// it is host/pid and a random part.
func Holder(label string) AcquireOption {
	return func(a *acquisition) error {
		if label == "" {
			return invalid("holder", "a holder must not be empty")
		}
		a.Holder = label
		return nil
	}
}

// Slots is how many slots the lease has: 1, an exclusive one, without this
// option; n makes it a semaphore. All holders of a lease ask for the same number.
func Slots(n uint64) AcquireOption {
	return func(a *acquisition) error {
		if n == 0 {
			return invalid("slots", "a lease has at least one slot")
		}
		a.AcquireRequest.Slots = n
		return nil
	}
}

// Take is how many of the slots this holder takes: 1 without this option; all of
// them keeps everybody else out, as a writer among readers.
func Take(n uint64) AcquireOption {
	return func(a *acquisition) error {
		if n == 0 {
			return invalid("take", "a holder takes at least one slot")
		}
		a.AcquireRequest.Take = n
		return nil
	}
}

// Grace keeps the name from everybody for so long after the lease has expired (not
// after a release), up to a minute: for resources that cannot check a token.
func Grace(d time.Duration) AcquireOption {
	return func(a *acquisition) error {
		if d < 0 {
			return invalid("grace_ms", "a grace must not be negative, as %s is", d)
		}
		a.GraceMS = milliseconds(d)
		return nil
	}
}

// Metadata is shown with the lease: up to 4 KiB. Given more than once, it adds up.
func Metadata(m map[string]string) AcquireOption {
	return func(a *acquisition) error {
		if a.AcquireRequest.Metadata == nil {
			a.AcquireRequest.Metadata = make(map[string]string, len(m))
		}
		maps.Copy(a.AcquireRequest.Metadata, m)
		return nil
	}
}

func invalid(field, format string, args ...any) error {
	status, title := wire.CodeInvalidRequest.HTTP()
	return &Error{Status: status, Code: wire.CodeInvalidRequest, Title: title, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// asked is what the options ask for.
func (c *Client) asked(name string, opts []AcquireOption) (acquisition, error) {
	a := acquisition{AcquireRequest: wire.AcquireRequest{Holder: c.holder}}
	for _, o := range opts {
		if err := o(&a); err != nil {
			return a, fmt.Errorf("acquire %s: %w", name, err)
		}
	}
	return a, nil
}

// call is the request for a lease. While it waits, each attempt asks for what is
// left of the wait.
func (a acquisition) call(name string) (*call, error) {
	q, err := jsonCall("acquire "+name, leasePath(name)+"/acquire", a.AcquireRequest)
	if err != nil {
		return nil, err
	}
	if a.wait > 0 {
		q.wait, q.waiting = a.wait, func(left time.Duration) ([]byte, error) {
			a.WaitMS = milliseconds(left)
			return encode(a.AcquireRequest)
		}
	}
	return q, nil
}
