package linear

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"fencepost/httpapi/wire"
)

// Each of these histories has one wrong answer in it, which is found.
func TestLinearFindsEveryPlantedAnswer(t *testing.T) {
	for name, p := range plantedStories() {
		t.Run(name, func(t *testing.T) {
			var s story
			p.tell(&s)
			dir := t.TempDir()
			v := Judge(&s.h, dir)
			if len(v.Findings) == 0 {
				t.Fatalf("not found: %s", v.Note)
			}
			all := strings.Join(v.Findings, "\n")
			if !strings.Contains(all, p.want) {
				t.Errorf("got %q, want %q in it", all, p.want)
			}
			views, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := len(views) > 0, strings.Contains(all, "; view: "); got != want {
				t.Errorf("views %v, findings %q", views, all)
			}
		})
	}
}

type planted struct {
	want string // in a finding
	tell func(*story)
}

func plantedStories() map[string]planted {
	all := plantedLeases()
	for _, more := range []map[string]planted{plantedEnds(), plantedWrites(), plantedValues(), plantedRepetitions()} {
		maps.Copy(all, more)
	}
	return all
}

// written is the usual beginning: token 5 of a, and then 9; both wrote k.
func written(s *story) {
	s.lease(10, 20, "a", 5, 0)
	done(s.put(30, "k", "v", 5), 40, "k", 6, 5)
	released(s.release(50, "a", 5), 60, true)
	s.lease(70, 80, "a", 9, 5)
	done(s.put(90, "k", "w", 9), 100, "k", 10, 9)
}

func plantedLeases() map[string]planted {
	return map[string]planted{
		"P3: two holders": {"granted: a, token 7", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(30, 40, "a", 7, 5)
		}},
		"P3: two holders, one of whom is known from a renewal": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(1100, 1110, "a", 7, 5)
			renewed(s.renew(1120, "a", 5), 1130, "a", 5)
		}},
		"P3: a lease held without an answer, and another": {"no order", func(s *story) {
			s.acquire(10, "a", 0)
			taken(s.acquire(30, "a", 0), 40, 5)
			s.lease(50, 60, "a", 7, 5)
			s.see(70, 80, "a", 5, 7)
		}},
		"P1: a token below an older one": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(30, "a", 5), 40, true)
			s.lease(50, 60, "a", 4, 5)
		}},
		"P2: one token for two": {"P2", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(30, "a", 5), 40, true)
			s.lease(50, 60, "a", 5, 0)
		}},
		"P2: one token for two leases": {"P2", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(30, 40, "b", 5, 0)
		}},
		"lease_held, though nobody held": {"refused as held", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(30, "a", 5), 40, true)
			taken(s.acquire(50, "a", 0), 60, 5)
		}},
		"lease_held by nobody, though nobody waits": {"refused as held", func(s *story) {
			refused(s.acquire(50, "a", 0), 60, wire.Problem{Code: wire.CodeLeaseHeld, QueueLength: new(uint64)})
		}},
		"a token out of the air": {"no acquire can have been granted it", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(1100, 1110, "a", 9, 8)
		}},
		"a previous token that hides who was there": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(1100, 1110, "a", 7, 5)
			s.lease(2200, 2210, "a", 9, 5)
		}},
		"another's label": {"was granted", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(s.acquire(30, "a", 0), 40, 5).Answer = []byte(`{"code":"lease_held","holder":"somebody else","token":5,"expires_in_ms":9}`)
		}},
		"a read that says the lease is free while it is held": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.see(30, 40, "a", 0, 5)
			renewed(s.renew(50, "a", 5), 60, "a", 5)
		}},
	}
}

func plantedEnds() map[string]planted {
	return map[string]planted{
		"P7: over before the promise": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(900, 910, "a", 7, 5)
		}},
		"P7: over before the promise of a renewal": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			renewed(s.renew(500, "a", 5), 510, "a", 5)
			lost(s.renew(1400, "a", 5), 1410, 5, 5, wire.ReasonExpired)
		}},
		"P7: over before the promise to one who waited": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(500, "a", 5), 505, true)
			granted(s.acquire(30, "a", 5000), 510, "a", 8, 5, 470)
			s.lease(1450, 1460, "a", 12, 8)
		}},
		"released: true to one who held nothing": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(1100, 1110, "a", 7, 5)
			released(s.release(1120, "a", 5), 1130, true)
		}},
		"released: false to the holder": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(30, "a", 5), 40, false)
			s.see(50, 60, "a", 5, 5)
		}},
		"a renewal of a released lease": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(s.release(30, "a", 5), 40, true)
			renewed(s.renew(50, "a", 5), 60, "a", 5)
		}},
		"lost as superseded, though nobody came": {"superseded", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			lost(s.renew(1400, "a", 5), 1410, 5, 5, wire.ReasonSuperseded)
		}},
		"P10: cancelled, and held all the same": {"no order", func(s *story) {
			keyed(s.lease(10, 20, "a", 5, 0), "k1")
			s.cancel(30, 40, "a", "k1", true)
			s.see(50, 60, "a", 5, 5)
		}},
		"P10: cancelled, and refused as held": {"P10", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(keyed(s.acquire(21, "a", 0), "k1"), 25, 5)
			s.cancel(30, 40, "a", "k1", true)
		}},
	}
}

func plantedRepetitions() map[string]planted {
	return map[string]planted{
		"P11: a repeated write is applied again": {"P11", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			done(keyed(s.put(30, "k", "v", 5), "w"), 40, "k", 6, 5)
			done(keyed(s.put(50, "k", "v", 5), "w"), 60, "k", 7, 5)
		}},
		"P11: a repeated acquire is granted again": {"P11", func(s *story) {
			keyed(s.lease(10, 20, "a", 5, 0), "k1")
			released(s.release(30, "a", 5), 40, true)
			keyed(s.lease(50, 60, "a", 7, 5), "k1")
		}},
		"P11: a repeated acquire is granted after it was refused": {"P11", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(keyed(s.acquire(30, "a", 0), "k1"), 40, 5)
			keyed(s.lease(1150, 1160, "a", 7, 5), "k1")
		}},
		"P11: a repeated acquire holds though it was released": {"no order", func(s *story) {
			keyed(s.lease(10, 20, "a", 5, 0), "k1")
			released(s.release(30, "a", 5), 40, true)
			keyed(s.lease(50, 60, "a", 5, 0), "k1")
		}},
		"P11: a repeated release tells another outcome": {"P11", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			released(keyed(s.release(30, "a", 5), "r"), 40, true)
			released(keyed(s.release(50, "a", 5), "r"), 60, false)
		}},
		"P11: a repeated refusal is accepted": {"P11", func(s *story) {
			written(s)
			stale(keyed(s.put(110, "k", "x", 5), "w"), 120, 5, 9, wire.ReasonNotOnRecord)
			done(keyed(s.put(130, "k", "x", 5), "w"), 140, "k", 16, 5)
		}},
		"P11: key_reused without another use": {"P11", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			refused(keyed(s.put(30, "k", "v", 5), "w"), 40, wire.Problem{Code: wire.CodeKeyReused})
		}},
		"nothing was asked": {"nothing to judge", func(*story) {}},
	}
}

func TestLinearFindsNoVerdict(t *testing.T) {
	var s story
	written(&s)
	// Whoever looks for these in every order does not end within a nanosecond.
	for range 2000 {
		s.put(110, "k", "x", 9)
	}
	s.none(120, 130, "k", 9)
	v := JudgeWithin(&s.h, "", time.Nanosecond)
	if len(v.Findings) != 1 || !strings.Contains(v.Findings[0], "no verdict within 1ns") {
		t.Errorf("got %q, want that there is no verdict", v.Findings)
	}
}

func TestLinearLeavesSharedLeasesOut(t *testing.T) {
	var s story
	written(&s)
	s.ask(110, "POST", "/v1/leases/shared/acquire", `{"holder":"h","slots":2}`)
	s.lease(120, 130, "shared", 20, 0)
	s.lease(120, 130, "shared", 22, 20)
	v := Judge(&s.h, t.TempDir())
	if len(v.Findings) > 0 || !strings.Contains(v.Note, "; 1 groups with shared leases left out") {
		t.Errorf("got %q, %s; want one group left out", v.Findings, v.Note)
	}
}
