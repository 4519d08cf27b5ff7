package certs

import (
	"fmt"
	"time"
)

// giveWay is how long before its end a certificate counts as over for a leader, which
// can then still hand over on the connections that it has.
const giveWay = 10 * time.Second

// warning is what the log was told last of a certificate's end.
type warning struct {
	of    time.Time // the end that it was about
	stage int
}

// stages are the times before the end that are worth a line in the log, once each.
// One as long as the certificate's whole life is worth none.
func stages() []time.Duration {
	return []time.Duration{30 * 24 * time.Hour, 7 * 24 * time.Hour, 24 * time.Hour, 0}
}

func (s *Source) warn(have *set, now time.Time) {
	if !s.warned.of.Equal(have.ends) {
		s.warned = warning{of: have.ends}
	}
	left, stage := have.ends.Sub(now), 0
	for i, before := range stages() {
		if left < before && before < have.ends.Sub(have.begins) || left < 0 {
			stage = i + 1
		}
	}
	if stage <= s.warned.stage {
		return
	}
	s.warned.stage = stage
	if left < 0 {
		s.Logger.Error("the certificate has run out: others refuse this node; replace the files, no restart is needed",
			"use", s.Use, "file", s.files.Cert, "valid_until", stamp(have.ends))
		return
	}
	s.Logger.Warn("the certificate runs out", "use", s.Use, "file", s.files.Cert, "valid_until", stamp(have.ends), "in", left.Round(time.Minute))
}

// Left is how long the certificate is valid still; negative: it has run out.
func (s *Source) Left() time.Duration { return s.current.Load().ends.Sub(s.Now()) }

// Over says that the certificate is not valid, or is about to run out, as the clock
// here has it: whoever has it should not lead.
func (s *Source) Over() error {
	now, have := s.Now(), s.current.Load()
	margin := min(giveWay, max(0, have.ends.Sub(have.begins)/10))
	switch {
	case now.Before(have.begins):
		return fmt.Errorf("the %s certificate is not yet valid: it is from %s on, and the clock here says %s", s.Use, stamp(have.begins), stamp(now))
	case now.After(have.ends.Add(-margin)):
		return fmt.Errorf("the %s certificate has run out or is about to: it is valid until %s, and the clock here says %s", s.Use, stamp(have.ends), stamp(now))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
