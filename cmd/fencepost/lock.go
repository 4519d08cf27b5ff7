package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

const (
	exitNotAcquired   = 75  // as EX_TEMPFAIL: another time it may go well
	exitLost          = 76  // the command was stopped, or had ended too late
	exitNotExecutable = 126 // these three as shells have them
	exitNotFound      = 127
	exitSignal        = 128
)

const (
	defaultKillAfter = 3 * time.Second
	// lossParts: so long before the lease is lost, as a part of the TTL, the
	// command is asked to end. A third of the TTL goes by before the first
	// renewal, and a tenth is the margin after the loss; what is left in between,
	// more than a third, is for repeating renewals that fail.
	lossParts = 5
	// releaseBound is how long a release may take after the command has ended;
	// lostReleaseBound likewise when the lease could not be renewed either.
	releaseBound     = 5 * time.Second
	lostReleaseBound = time.Second
	// tellWaiting is when somebody at a terminal begins to wonder.
	tellWaiting = time.Second
)

// A lock is one run of the command of that name.
type lock struct {
	env                              *environment
	name, path                       string // path: of the program
	argv, own                        []string
	holder                           string
	ttl, wait, grace, killAfter, ask time.Duration
	slots, take                      uint64
	signals                          chan os.Signal
}

func newLockCommand(env *environment) *cobra.Command {
	k := &lock{env: env}
	c := &cobra.Command{
		Use:   "lock NAME [flags] -- CMD ARGS...",
		Short: "Run a command while holding a lease",
		Long:  lockHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("lock takes a name, then --, then the command: fencepost lock nightly -- ./backup.sh --full")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			k.name, k.argv = args[0], args[1:]
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { k.own = append(k.own, variable(f.Name)) })
			return k.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.DurationVar(&k.ttl, "ttl", 10*time.Second, "how long the lease outlives its last renewal")
	f.DurationVar(&k.wait, "wait", time.Minute, "how long to stand in the queue if it is not free, at most 5m")
	f.DurationVar(&k.killAfter, "kill-after", defaultKillAfter, "from TERM to KILL; when the lease is running out, at most a fifth of the TTL")
	f.StringVar(&k.holder, "holder", "", "label for people (default user@host/pid)")
	f.Uint64Var(&k.slots, "slots", 1, "slots of the lease: 1 is exclusive, more are shared")
	f.Uint64Var(&k.take, "take", 1, "slots to take: all of them as a writer, 1 as a reader")
	f.DurationVar(&k.grace, "grace", 0, "after an expiry, grant it to nobody for so long")
	return c
}

const lockHelp = `Run a command while holding a lease.

  fencepost lock nightly --wait 0s -- ./backup.sh --full "My Documents"

The command gets its arguments as they are given, without a shell in between, and
stdin, stdout and stderr. In its environment are FENCEPOST_LEASE, FENCEPOST_TOKEN,
FENCEPOST_ENDPOINTS, and FENCEPOST_AUTH_TOKEN and FENCEPOST_TLS_CA, _CERT and _KEY
where lock was given these, which the client commands understand: inside,

  fencepost kv put backup/last "$(date)"

writes under the lease's token, and is refused once somebody else has the lease
(it needs --guard held if the lease has --slots).
(The variables that set lock's own flags, such as FENCEPOST_TTL, are not handed on.)

The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1 and USR2
to fencepost are forwarded to that group; after a TERM it gets KILL when --kill-after
has passed. When the command has ended, what it left behind in its group gets TERM,
and KILL half a second later. The lease is released when none of the group is left.

If the lease cannot be renewed, the group gets TERM, and KILL before anybody else
can be granted the lease. If fencepost itself is killed, the command gets KILL from
the kernel (Linux).

What a process group cannot reach is held back by the token alone: a process that
left the group (setsid, daemons), grandchildren after a kill -9 of fencepost, and
everything while fencepost is stopped (kill -STOP) or the machine is asleep. Write
what matters under the token.

Exit: that of the command (128+n if signal n ended it, 126 not executable, 127 not
found), 75 the lease was not acquired and the command not started, 76 it was lost and the command stopped, 2 the
command line is wrong.`

func (k *lock) run(ctx context.Context) error {
	if k.wait < 0 || k.killAfter < 0 {
		return usageError(errors.New("--wait and --kill-after must not be negative"))
	}
	var err error
	if k.path, err = exec.LookPath(k.argv[0]); err != nil {
		return cannotRun(err) // before a lease is taken for nothing
	}
	if k.holder == "" {
		k.holder = defaultHolder()
	}
	k.ask = min(k.killAfter, k.ttl/lossParts)
	c, err := k.env.client()
	if err != nil {
		return err
	}
	defer c.Close()
	defer k.notify()()
	l, err := k.acquire(ctx, c)
	if err != nil {
		return err
	}
	return k.hold(l)
}

// notify has the signals sent to us, until the function that it returns is called.
// What was ignored when we started (nohup) stays so, for the command, too.
func (k *lock) notify() (stop func()) {
	k.signals = make(chan os.Signal, 16)
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT} {
		if !signal.Ignored(s) {
			signal.Notify(k.signals, s)
		}
	}
	// A message of ours to a reader that has gone must not end us, and thereby the
	// command. Ignoring the signal would hand that on to the command.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return func() { signal.Stop(k.signals); signal.Stop(pipes) }
}

// acquire waits for the lease, or for a signal to end.
func (k *lock) acquire(ctx context.Context, c *client.Client) (*client.Lease, error) {
	bounded, cancel := context.WithTimeout(ctx, k.env.timeout+k.wait)
	defer cancel()
	var l *client.Lease
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err = c.Acquire(bounded, k.name, client.Holder(k.holder), client.TTL(k.ttl), client.Wait(k.wait),
			client.Slots(k.slots), client.Take(k.take), client.Grace(k.grace))
	}()
	var ended os.Signal
	waiting := time.NewTimer(tellWaiting)
	defer waiting.Stop()
	for {
		select {
		case <-waiting.C:
			if isTerminal(k.env.stderr) {
				k.say("waiting for lease %s, for up to %s", k.name, k.wait)
			}
			continue
		case s := <-k.signals:
			switch s {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
				ended = s
				cancel()
			}
			continue
		case <-done:
		}
		break
	}
	if ended == nil && ctx.Err() == nil {
		return l, notAcquired(err)
	}
	if l != nil {
		k.release(l, releaseBound)
	}
	if ended == nil {
		return nil, &statusError{exitNotAcquired, fmt.Errorf("lease %s not acquired: %w", k.name, context.Cause(ctx))}
	}
	return nil, &statusError{exitNotAcquired, fmt.Errorf("lease %s not acquired: %s while waiting for it", k.name, ended)}
}

func notAcquired(err error) error {
	var refused *client.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == wire.CodeInvalidRequest:
		return usageError(err)
	case errors.Is(err, client.ErrUnknown):
		// Not wrapped: nobody needs to find out, the client gives back what it got.
		return &statusError{exitNotAcquired, fmt.Errorf("not acquired: %v", err)}
	}
	return &statusError{exitNotAcquired, fmt.Errorf("not acquired: %w", err)}
}

// hold runs the command under the lease, and releases it when nothing of the
// command is left.
func (k *lock) hold(l *client.Lease) error {
	if err := l.Err(); err != nil { // we were stopped for a while
		return &statusError{exitNotAcquired, fmt.Errorf("the command was not started: %w", err)}
	}
	g, err := startGroup(k.path, k.argv, k.environ(l))
	if err != nil {
		k.release(l, releaseBound)
		return cannotRun(err)
	}
	h := &holding{lease: l, group: g, signals: k.signals, killAfter: k.killAfter, ask: k.ask, say: k.say}
	status, lost := h.run()
	left := h.finish()
	g.terminal.takeBack(status)
	if lost == nil {
		lost = h.lostNow()
	}
	switch {
	case left != nil:
		k.say("lease %s is not released: %v", k.name, left)
	case lost != nil:
		k.release(l, lostReleaseBound)
	default:
		k.release(l, releaseBound)
	}
	if lost != nil {
		return &statusError{exitLost, lost}
	}
	return exitOf(status)
}

func (k *lock) say(format string, args ...any) {
	fmt.Fprintf(k.env.stderr, "fencepost: "+format+"\n", args...)
}

func (k *lock) release(l *client.Lease, bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		k.say("lease %s is not released, so it ends by itself within %s: %v", k.name, l.TTL(), err)
	}
}

// environ is what the command finds in its environment. The flags of this lock are
// not meant for a fencepost that the command runs.
func (k *lock) environ(l *client.Lease) []string {
	drop := append([]string{"FENCEPOST_LEASE", "FENCEPOST_TOKEN", "FENCEPOST_ENDPOINTS", "FENCEPOST_AUTH_TOKEN", "FENCEPOST_TLS_CA", "FENCEPOST_TLS_CERT", "FENCEPOST_TLS_KEY"}, k.own...)
	var out []string
next:
	for _, e := range os.Environ() {
		for _, d := range drop {
			if strings.HasPrefix(e, d+"=") {
				continue next
			}
		}
		out = append(out, e)
	}
	if k.env.authToken != "" {
		out = append(out, "FENCEPOST_AUTH_TOKEN="+k.env.authToken)
	}
	out = append(out, k.env.tls.variables()...)
	return append(out,
		"FENCEPOST_LEASE="+k.name,
		"FENCEPOST_TOKEN="+strconv.FormatUint(l.Token(), 10),
		"FENCEPOST_ENDPOINTS="+strings.Join(k.env.endpoints, ","))
}

// A statusError is an exit code of its own. Without an error there is nothing to
// say.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return "exit status " + strconv.Itoa(e.code)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

func exitOf(s syscall.WaitStatus) error {
	switch {
	case s.Signaled():
		return &statusError{code: exitSignal + int(s.Signal())}
	case s.ExitStatus() != 0:
		return &statusError{code: s.ExitStatus()}
	}
	return nil
}

func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &statusError{exitNotFound, err}
	}
	return &statusError{exitNotExecutable, err}
}
