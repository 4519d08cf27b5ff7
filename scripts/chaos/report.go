package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fencepost/cluster/check"
)

// maxShown is how many findings are printed of each check.
const maxShown = 3

// text is a verdict in one line.
func text(v *check.Verdict) string {
	if len(v.Findings) == 0 {
		return v.Note
	}
	s := strings.Join(v.Findings[:min(maxShown, len(v.Findings))], "; ")
	if more := len(v.Findings) - maxShown; more > 0 {
		s += fmt.Sprintf("; and %d more", more)
	}
	return s
}

// print writes a line for each check, and says how many passed and failed.
func (r *result) print(name string) (passed, failed int) {
	for _, v := range r.verdicts {
		word := "ok  "
		if len(v.Findings) > 0 {
			word = "FAIL"
			failed++
		} else {
			passed++
		}
		fmt.Printf("%s %s %s: %s\n", word, name, v.Name, text(v))
	}
	fmt.Printf("     %s %d hits, %d operations, %d changes acknowledged; first service after a hit: %s; longest gap: %s\n", name, len(r.hits), r.operations, r.acked, spreadOf(r.outages), spreadOf(r.gaps))
	return passed, failed
}

// say tells how it goes, for people.
func (s *settings) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "chaos: %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// write writes history and hits down.
func (r *run) write() error {
	f, err := os.Create(filepath.Join(r.dir, "history"))
	if err != nil {
		return err
	}
	if err := errors.Join(r.e.history.Write(f), f.Close()); err != nil {
		return err
	}
	f, err = os.Create(filepath.Join(r.dir, "hits"))
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	for _, h := range r.e.hits {
		err = errors.Join(err, e.Encode(h))
	}
	return errors.Join(err, w.Flush(), f.Close())
}

// ledgerLine is date, commit, nemesis, seed, hits, operations, verdict, and the
// outages and gaps of a run, separated by tabs.
func (s *settings) ledgerLine(now time.Time, r *result) string {
	verdict := "pass"
	if r.failed() {
		verdict = "FAIL"
	}
	o, g := spreadOf(r.outages), spreadOf(r.gaps)
	return strings.Join([]string{
		now.UTC().Format(time.RFC3339), s.commit, r.nemesis.id, fmt.Sprint(s.seed), fmt.Sprint(len(r.hits)), fmt.Sprint(r.operations), verdict,
		fmt.Sprintf("%d\t%d\t%d", o.median.Milliseconds(), o.p99.Milliseconds(), o.max.Milliseconds()),
		fmt.Sprintf("%d\t%d\t%d", g.median.Milliseconds(), g.p99.Milliseconds(), g.max.Milliseconds()),
	}, "\t") + "\n"
}

const ledgerHead = "date\tcommit\tnemesis\tseed\thits\toperations\tverdict\tmedian_ms\tp99_ms\tmax_ms\tgap_median_ms\tgap_p99_ms\tgap_max_ms\n"

// enter appends to the ledger, if there is one.
func (s *settings) enter(r *result) error {
	if s.ledger == "" {
		return nil
	}
	f, err := os.OpenFile(s.ledger, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	line := s.ledgerLine(time.Now(), r)
	if i, err := f.Stat(); err == nil && i.Size() == 0 {
		line = ledgerHead + line
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
