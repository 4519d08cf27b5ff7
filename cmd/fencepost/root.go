package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fencepost/client"
)

// environment is what a command may touch outside itself, and the flags that all
// commands share. Commands of one run share it; nothing runs beside them.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	endpoints []string
	authToken string
	tls       tlsFlags
	output    string
	timeout   time.Duration
	config    string

	started bool // the command line was understood, and the command runs
}

// run executes one command line and returns the process's exit code; the table
// of codes is exitCodesHelp. It reads the environment variables of the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	env := &environment{stdin: stdin, stdout: stdout, stderr: stderr}
	root := newRootCommand(env)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !env.started {
		err = usageError(err)
	}
	if err != nil {
		explain(stderr, cmd, err)
	}
	return exitCode(err)
}

func newRootCommand(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "fencepost",
		Short: "Leases with fencing tokens, and a key store that checks them",
		Long: `Leases with fencing tokens, and a key store that checks them.

Every flag can also be given as FENCEPOST_<FLAG> in the environment (dashes become
underscores: FENCEPOST_AUTH_TOKEN) and in a YAML file (--config), where the flags of
a command stand under its name. A flag goes before the environment, and that
before the file:

  endpoints: [http://10.0.0.1:7001, http://10.0.0.2:7001]
  timeout: 5s
  kv:
    put:
      guard: held`,
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := configure(env, cmd); err != nil {
				return err
			}
			if err := checkOutput(env, cmd); err != nil {
				return err
			}
			env.started = true
			return nil
		},
	}
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var none *pflag.NotExistError
		if errors.As(err, &none) {
			err = fmt.Errorf("%w (what begins with - and is no flag goes after --)", err)
		}
		return usageError(err)
	})
	f := root.PersistentFlags()
	f.StringSliceVar(&env.endpoints, "endpoints", []string{"http://127.0.0.1:7001"}, "URLs of the nodes, separated by commas")
	f.StringVar(&env.authToken, "auth-token", "", "bearer token to send")
	f.StringVar(&env.tls.ca, "tls-ca", "", "PEM file of the authorities that https endpoints are verified by, if not the system's")
	f.StringVar(&env.tls.cert, "tls-cert", "", "PEM file of the certificate to show, to nodes that ask for one")
	f.StringVar(&env.tls.key, "tls-key", "", "PEM file of its key")
	f.StringVarP(&env.output, "output", "o", outputText, "what to print: text or json")
	f.DurationVar(&env.timeout, "timeout", 10*time.Second, "how long to try, all repetitions included")
	f.StringVar(&env.config, "config", "", "YAML file with flags")

	root.AddGroup(
		&cobra.Group{ID: groupUse, Title: "Leases and keys:"},
		&cobra.Group{ID: groupRun, Title: "Running a cluster:"},
	)
	add(root, groupUse, newLockCommand(env), newAcquireCommand(env), newRenewCommand(env), newReleaseCommand(env), newLeasesCommand(env), newKVCommand(env), newWatchCommand(env))
	add(root, groupRun, newServerCommand(env), newDevCommand(env), newClusterCommand(env), newSnapshotCommand(env), newBenchCommand(env), newDemoCommand(env), newRecoverCommand(env), newDebugCommand(env))
	root.AddCommand(newVersionCommand(env), newExitCodesTopic())
	return root
}

const (
	groupUse = "use"
	groupRun = "run"

	outputText  = "text"
	outputJSON  = "json"
	outputToken = "token"
	// outputsKey is the annotation of a command that can print more than text and
	// JSON.
	outputsKey = "outputs"
)

func add(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// newGroupCommand is a command that only holds others; called without one of
// them it is a mistake.
func newGroupCommand(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var names []string
			for _, sub := range cmd.Commands() {
				if sub.IsAvailableCommand() {
					names = append(names, sub.Name())
				}
			}
			return usageError(fmt.Errorf("say which: %s", strings.Join(names, ", ")))
		},
	}
	c.AddCommand(commands...)
	return c
}

func checkOutput(env *environment, cmd *cobra.Command) error {
	can := []string{outputText, outputJSON}
	if more := cmd.Annotations[outputsKey]; more != "" {
		can = append(can, strings.Split(more, ",")...)
	}
	if !slices.Contains(can, env.output) {
		return usageError(fmt.Errorf("--output %q is not one of: %s", env.output, strings.Join(can, ", ")))
	}
	return nil
}

// connect makes the client of this run, and bounds the run by --timeout. The
// caller calls done.
func (e *environment) connect(ctx context.Context) (c *client.Client, bounded context.Context, done func(), err error) {
	return e.connectFor(ctx, 0)
}

// connectFor is connect for a run that may also wait for so long.
func (e *environment) connectFor(ctx context.Context, wait time.Duration) (c *client.Client, bounded context.Context, done func(), err error) {
	if c, err = e.client(); err != nil {
		return nil, nil, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, e.timeout+wait)
	return c, bounded, func() { cancel(); c.Close() }, nil
}

// client makes the client of this run. The caller closes it.
func (e *environment) client() (*client.Client, error) {
	if e.timeout <= 0 {
		return nil, usageError(fmt.Errorf("--timeout must be positive, not %s", e.timeout))
	}
	opts, err := e.clientOptions()
	if err != nil {
		return nil, err
	}
	c, err := client.New(e.endpoints, opts...)
	if err != nil {
		return nil, usageError(fmt.Errorf("--endpoints: %w", err))
	}
	return c, nil
}

func (e *environment) printJSON(v any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows in columns; the first row is the head.
func (e *environment) table(rows ...[]string) error {
	w := tabwriter.NewWriter(e.stdout, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}
