package cluster

import (
	"crypto/tls"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"fencepost/fsm/fsmpb"
)

// Known cases of nodes that should not lead: who leads instead.

// apiTLS is a sim whose nodes serve their APIs with certificates. Questions of one node to
// another end as they would in a handshake; shown: clients have to show theirs.
func apiTLS(t *testing.T, c *tlsSim, shown bool) func(s *sim) {
	return func(s *sim) {
		c.setUp(s, 24*time.Hour)
		s.wire = nil
		s.change = func(cfg *Config) { cfg.HTTPTLS, cfg.Logger = c.open("http", cfg.Name), c.logger(cfg.Name) }
		s.refuses = func(asks, asked *simNode) error {
			switch {
			case asked.cfg.HTTPTLS.Left() < 0:
				return &tls.CertificateVerificationError{Err: fmt.Errorf("%s is over", asked.cfg.Name)}
			case shown && asks.cfg.HTTPTLS.Left() < 0:
				return io.ErrUnexpectedEOF
			}
			return nil
		}
	}
}

// led counts for each node the quarters of a second in which it was ready to serve.
func (s *sim) led(during time.Duration) map[string]int {
	led := map[string]int{}
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		for _, n := range s.nodes {
			if n.ready.term() != 0 {
				led[n.cfg.Name]++
			}
		}
	}
	return led
}

// With the certificates of two of three APIs over, the third leads, whichever it is, and
// whether or not a leader whose own is over can ask the others.
func TestB78_TheOneWithACertificateLeads(t *testing.T) {
	for _, answer := range []string{"all answer", "clients show theirs", "nobody answers"} {
		for _, fit := range []string{"n1", "n2", "n3"} {
			t.Run(answer+", "+fit, func(t *testing.T) {
				c := &tlsSim{t: t}
				setUp := apiTLS(t, c, answer == "clients show theirs")
				inSimOn(t, setUp, func(t *testing.T, s *sim) {
					if answer == "nobody answers" {
						s.refuses = func(_, _ *simNode) error { return io.ErrUnexpectedEOF }
					}
					for _, n := range s.nodes {
						if n.cfg.Name != fit {
							c.issue(n.cfg.Name, 90*time.Second)
						}
					}
					time.Sleep(3 * time.Minute)
					led := s.led(10 * time.Minute)
					if served := led[fit]; len(led) != 1 || served < 2399 {
						t.Errorf("in 2400 quarters of a second these led: %v, want %s alone", led, fit)
					}
				})
			})
		}
	}
}

// With all of them over there is nobody to give leadership to: it stays.
func TestB78_WithoutAnyCertificateLeadershipStays(t *testing.T) {
	for _, shown := range []bool{false, true} {
		t.Run(fmt.Sprint("clients show theirs: ", shown), func(t *testing.T) {
			c := &tlsSim{t: t}
			inSimOn(t, apiTLS(t, c, shown), func(t *testing.T, s *sim) {
				for _, n := range s.nodes {
					c.issue(n.cfg.Name, 90*time.Second)
				}
				time.Sleep(2 * time.Minute)
				term := s.leader().Status().Term
				time.Sleep(10 * time.Minute)
				if now := s.leader().Status().Term; now != term {
					t.Errorf("from term %d to %d, though nobody may lead", term, now)
				}
				c.issue("n2", time.Hour)
				time.Sleep(10 * time.Second)
				if now := s.leader().cfg.Name; now != "n2" {
					t.Errorf("%s leads, and n2 alone has a certificate", now)
				}
			})
		})
	}
}

// A node with a full disk is told to be unhealthy, and no leadership is given to it: not
// by one whose disk is full as well, not by one that stops, not by command.
func TestB70_AFullNodeIsGivenNoLeadership(t *testing.T) {
	for fit := range 3 {
		inSim(t, func(t *testing.T, s *sim) {
			if l := s.leader(); l == s.nodes[fit] {
				if _, err := l.Transfer(t.Context(), s.followers(l)[0].cfg.Name); err != nil {
					t.Fatal(err)
				}
			}
			l := s.leader()
			other := s.followers(l)[0]
			if other == s.nodes[fit] {
				other = s.followers(l)[1]
			}
			other.store.fails(pathError("write", syscall.ENOSPC))
			if o, err := l.acquire("a", time.Hour, ""); err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("with two of three disks: %v %v", o, err)
			}
			time.Sleep(time.Second)
			list, err := l.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(list, func(m Member) bool { return m.ID == other.id })
			if m := list[at]; m.Healthy || !m.Unfit || m.AppliedIndex == 0 {
				t.Errorf("the full node is told as %+v", m)
			}
			if _, err := l.Transfer(t.Context(), other.cfg.Name); err == nil {
				t.Errorf("leadership was handed to a node with a full disk")
			}
			for range 10 {
				if to, ok := l.successor(t.Context(), l.member.Load(), map[string]int{s.nodes[fit].id: 5}); !ok || to.ID != s.nodes[fit].id {
					t.Errorf("the successor is %+v, want %s", to, s.nodes[fit].id)
				}
			}
			other.store.fails(nil)
			time.Sleep(15 * time.Second) // Raft waits up to 10.24 s between tries
			s.sameEverywhere()
		})
	}
}
