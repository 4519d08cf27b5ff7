package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

const (
	exitDone        = 0
	exitRefused     = 1
	exitUsage       = 2
	exitUnavailable = 3
	exitUnknown     = 4
)

const exitCodesHelp = `The exit code says what became of it, so that scripts need not read the text:

  0  done
  1  refused, and nothing was changed: the lease is held or lost, the token is
     stale, there is no such key, the request is not allowed or not valid; also
     any failure on this side, such as a file that cannot be read
  2  the command line, the environment or the configuration file is wrong
  3  unavailable: no node could take it, and surely nothing was changed
  4  unknown: it may have happened. Repeat it with the --idempotency-key that the
     message tells: it is applied once, and the repetition tells the outcome

A server that must not go on (a disk that hangs or fails, an entry that it cannot
apply) ends with 70. 'fencepost lock' ends as its command does, or with 75 or 76:
see its help.`

func newExitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesHelp}
}

// A mistakenError is a mistake in the command line, environment or file.
type mistakenError struct{ err error }

func (e *mistakenError) Error() string { return e.err.Error() }
func (e *mistakenError) Unwrap() error { return e.err }

// usageError marks an error as the caller's mistake: exit code 2.
func usageError(err error) error {
	var m *mistakenError
	if err == nil || errors.As(err, &m) {
		return err
	}
	return &mistakenError{err}
}

func exitCode(err error) int {
	var m *mistakenError
	var s *statusError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &s):
		return s.code
	case errors.As(err, &m):
		return exitUsage
	case errors.Is(err, client.ErrUnknown):
		return exitUnknown
	case errors.Is(err, client.ErrUnavailable):
		return exitUnavailable
	}
	return exitRefused
}

// explain tells a person what went wrong, and what to do next.
func explain(w io.Writer, cmd *cobra.Command, err error) {
	var s *statusError
	if errors.As(err, &s) && s.err == nil {
		return // the command that ended so has said why
	}
	fmt.Fprintf(w, "fencepost: %v\n", err)
	if next := advice(cmd, err); next != "" {
		fmt.Fprintf(w, "%s\n", next)
	}
}

func advice(cmd *cobra.Command, err error) string {
	var m *mistakenError
	var out *client.OutcomeError
	var e *client.Error
	switch {
	case errors.As(err, &m):
		return fmt.Sprintf("See '%s --help'.", cmd.CommandPath())
	case errors.As(err, &out) && out.Unknown:
		return "To learn what became of it, repeat the same command with --idempotency-key " + out.Key +
			" within ten minutes: it is applied once."
	case errors.As(err, &out):
		return "Nothing was changed. " + adviceOnSilence(out.Last)
	case errors.As(err, &e):
		return adviceOn(e)
	}
	return ""
}

// adviceOnSilence says what to do if nobody answered, and the last attempt failed so.
func adviceOnSilence(last error) string {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(last, &untrusted):
		return "The server's certificate does not pass: check --tls-ca, and that --endpoints names hosts that it is for."
	case errors.Is(last, http.ErrSchemeMismatch):
		return "The server does not speak TLS: check whether --endpoints should begin with http://."
	case last != nil && strings.Contains(last.Error(), "remote error: tls:"):
		return "The server wants a certificate that it trusts: check --tls-cert and --tls-key."
	}
	return "Check that --endpoints names running nodes, and see 'fencepost cluster status'; then try again."
}

// adviceOn says what to do about a refusal.
func adviceOn(e *client.Error) string {
	switch {
	case errors.Is(e, client.ErrHeld):
		s := "Try again when it is free"
		if e.Holder != "" {
			s = fmt.Sprintf("%q holds it with token %d", e.Holder, e.Token)
			if e.ExpiresIn > 0 {
				s += fmt.Sprintf(", for another %s unless it renews", e.ExpiresIn)
			}
			s += ". Try again then"
		}
		return s + "; 'fencepost leases' shows who holds what."
	case errors.Is(e, client.ErrLost):
		return "Stop working under this token. To go on, acquire the lease again, and read before you write."
	case errors.Is(e, client.ErrStale) && e.Reason == wire.ReasonWrongLease:
		return "The token is of another lease than --lease names."
	case errors.Is(e, client.ErrStale):
		s := "Nothing was written"
		if e.Watermark > 0 {
			s += fmt.Sprintf("; the key's watermark is %d", e.Watermark)
		}
		return s + ". Stop working under this token: acquire the lease again, and read before you write."
	case errors.Is(e, client.ErrNotIssued):
		return "This cluster has not issued that token yet: check the number, and that --endpoints is the right cluster."
	case errors.Is(e, client.ErrMismatch):
		return fmt.Sprintf("The key's version is %d (0: it does not exist). Read it again, and decide anew.", e.Version)
	case errors.Is(e, client.ErrQuorum):
		return "Bring the others back, or let a new node join first; --force removes it all the same. See 'fencepost cluster status'."
	case errors.Is(e, client.ErrCompacted):
		return fmt.Sprintf("Look at what there is now ('fencepost leases', 'fencepost kv list'), and watch on from there; --from %d is the earliest.", e.Oldest)
	case e.Code == wire.CodeKeyReused:
		return "That --idempotency-key belongs to another request: use a new one, or repeat exactly what was sent with it."
	case e.Code == wire.CodeOtherCluster:
		return "Nothing was changed. If that is what you want, say --force: the keys of this cluster are replaced by the other one's."
	case e.Code == wire.CodeTokenRequired:
		return "Every write needs --token, as 'fencepost acquire -o token' prints it."
	case e.Status == 429:
		return "Nothing was changed. Wait a little and try again; 'fencepost cluster status' and the metrics show what is full."
	case e.Status == 401 || e.Status == 403:
		return "Check --auth-token."
	case e.Code == wire.CodeInvalidRequest && e.Field != "":
		return fmt.Sprintf("Correct %s and try again.", e.Field)
	case e.Code == "":
		return "That is no answer of fencepost: check --endpoints, and whether they should begin with https://."
	}
	return ""
}
