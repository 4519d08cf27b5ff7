package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progressEvery is how often long work says how far it is; what is over sooner says
// nothing.
const progressEvery = 2 * time.Second

// progress tells a person how many bytes have passed. It is for one piece of work.
type progress struct {
	done atomic.Int64
	once sync.Once
	quit chan struct{}
	over chan struct{}
}

// newProgress begins; of is how many bytes there are, 0: not known. stop ends it.
func newProgress(to io.Writer, verb string, of int64) *progress {
	p := &progress{quit: make(chan struct{}), over: make(chan struct{})}
	go func() {
		defer close(p.over)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-t.C:
			}
			done := p.done.Load()
			switch {
			case of > 0 && done >= of:
				fmt.Fprintf(to, "%s all %s, waiting\n", verb, byteCount(uint64(of)))
			case of > 0:
				fmt.Fprintf(to, "%s %s of %s\n", verb, byteCount(uint64(done)), byteCount(uint64(of)))
			default:
				fmt.Fprintf(to, "%s %s\n", verb, byteCount(uint64(done)))
			}
		}
	}()
	return p
}

// stop may be called again; nothing is printed afterwards.
func (p *progress) stop() {
	p.once.Do(func() { close(p.quit) })
	<-p.over
}

// reader counts what is read, and calls more each time.
func (p *progress) reader(r io.Reader, more func()) io.Reader { return &counted{p, r, more} }

type counted struct {
	p    *progress
	r    io.Reader
	more func()
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if n > 0 {
		c.p.done.Add(int64(n))
		c.more()
	}
	return n, err
}

// byteCount is a number of bytes for people.
func byteCount(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d GiB", n>>30)
}
