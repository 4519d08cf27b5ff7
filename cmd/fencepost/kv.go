package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"fencepost/client"
)

func newKVCommand(env *environment) *cobra.Command {
	return newGroupCommand("kv", "Read keys, and write them under a token",
		newGetCommand(env), newPutCommand(env), newDeleteCommand(env), newKeyListCommand(env), newFenceCommand(env))
}

// A writing is the flags that every guarded write has.
type writing struct {
	token    uint64
	guard    string
	lease    string
	version  uint64
	absent   bool
	key      string
	flagsSet func(name string) bool
}

func (w *writing) flags(c *cobra.Command) {
	f := c.Flags()
	tokenFlag(c, &w.token)
	f.StringVar(&w.guard, "guard", string(client.GuardLatest), "latest: the token must not be older than what the key has seen; held: its lease must be live, too")
	f.StringVar(&w.lease, "lease", "", "the token must be this lease's")
	f.Uint64Var(&w.version, "if-version", 0, "only if the key has this version (0: does not exist)")
	f.BoolVar(&w.absent, "if-absent", false, "only if the key does not exist")
	keyFlag(c, &w.key)
	w.flagsSet = f.Changed
}

func (w *writing) write() (client.Write, error) {
	if err := needToken(w.token); err != nil {
		return client.Write{}, err
	}
	if w.guard != string(client.GuardLatest) && w.guard != string(client.GuardHeld) {
		return client.Write{}, usageError(fmt.Errorf("--guard %q is neither latest nor held", w.guard))
	}
	if w.absent && w.flagsSet("if-version") {
		return client.Write{}, usageError(errors.New("--if-version and --if-absent exclude each other"))
	}
	out := client.Write{Token: w.token, Guard: client.Guard(w.guard), Lease: w.lease}
	if w.absent || w.flagsSet("if-version") {
		out.IfVersion = &w.version
	}
	return out, nil
}

func newPutCommand(env *environment) *cobra.Command {
	var w writing
	var file, contentType string
	c := &cobra.Command{
		Use:   "put KEY {VALUE | - | --file F} --token N",
		Short: "Write a value under a token",
		Long:  "Write a value under a token. The value is the argument, or what stdin has (-), or a file's bytes.",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := w.write(); err != nil {
				return err // before stdin is waited for
			}
			value, err := env.value(args[1:], file)
			if err != nil {
				return err
			}
			return w.run(cmd, env, func(ctx context.Context, c *client.Client, write client.Write) (any, [][]string, error) {
				write.ContentType = contentType
				r, err := c.Put(ctx, args[0], value, write)
				if err != nil {
					return nil, nil, err
				}
				return r, [][]string{{"KEY", "VERSION", "WATERMARK"}, {r.Key, number(r.Version), number(r.Watermark)}}, nil
			})
		},
	}
	w.flags(c)
	c.Flags().StringVar(&file, "file", "", "file that has the value")
	c.Flags().StringVar(&contentType, "content-type", "application/octet-stream", "stored with the value")
	return c
}

// value is what put writes: exactly one of argument, stdin and file.
func (e *environment) value(args []string, file string) ([]byte, error) {
	switch {
	case (len(args) == 1) == (file != ""):
		return nil, usageError(errors.New("give the value once: as an argument, as - for stdin, or with --file"))
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the value: %w", err)
		}
		return b, nil
	case args[0] == "-":
		b, err := io.ReadAll(e.stdin)
		if err != nil {
			return nil, fmt.Errorf("read the value from stdin: %w", err)
		}
		return b, nil
	}
	return []byte(args[0]), nil
}

// run makes the one call of a command that writes, as its flags say, and prints
// what came of it: a document, or a table.
func (w *writing) run(cmd *cobra.Command, env *environment, call func(context.Context, *client.Client, client.Write) (any, [][]string, error)) error {
	write, err := w.write()
	if err != nil {
		return err
	}
	c, ctx, done, err := env.connect(withKey(cmd.Context(), w.key))
	if err != nil {
		return err
	}
	defer done()
	document, rows, err := call(ctx, c, write)
	if err != nil {
		return err
	}
	if env.output == outputJSON {
		return env.printJSON(document)
	}
	return env.table(rows...)
}

func newDeleteCommand(env *environment) *cobra.Command {
	var w writing
	c := &cobra.Command{
		Use: "delete KEY --token N", Short: "Delete a value; its watermark stays", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.run(cmd, env, func(ctx context.Context, c *client.Client, write client.Write) (any, [][]string, error) {
				r, err := c.Delete(ctx, args[0], write)
				if err != nil {
					return nil, nil, err
				}
				return r, [][]string{{"KEY", "DELETED", "WATERMARK"}, {r.Key, yesNo(r.Deleted), number(r.Watermark)}}, nil
			})
		},
	}
	w.flags(c)
	return c
}

func newFenceCommand(env *environment) *cobra.Command {
	var w writing
	c := &cobra.Command{
		Use: "fence KEY --token N", Short: "Refuse older tokens on a key from now on, without writing it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.run(cmd, env, func(ctx context.Context, c *client.Client, write client.Write) (any, [][]string, error) {
				r, err := c.Fence(ctx, args[0], write)
				if err != nil {
					return nil, nil, err
				}
				return r, [][]string{{"KEY", "WATERMARK"}, {r.Key, number(r.Watermark)}}, nil
			})
		},
	}
	w.flags(c)
	return c
}

func newGetCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "get KEY",
		Short: "Print a value, byte for byte",
		Long:  "Print a value, byte for byte. With -o json: version, token and watermark, too.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			k, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(keyDocument{k.Key, &k.Value, k.Version, k.Token, k.Watermark, k.ContentType})
			}
			_, err = env.stdout.Write(k.Value)
			return err
		},
	}
}

// keyDocument is a key as the API shows it; a value is in base64, nil is none.
type keyDocument struct {
	Key         string  `json:"key"`
	Value       *[]byte `json:"value_base64,omitempty"`
	Version     uint64  `json:"version"`
	Token       uint64  `json:"token"`
	Watermark   uint64  `json:"watermark"`
	ContentType string  `json:"content_type,omitempty"`
}

func newKeyListCommand(env *environment) *cobra.Command {
	var values bool
	c := &cobra.Command{
		Use: "list [PREFIX]", Short: "List keys", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if values && env.output != outputJSON {
				return usageError(errors.New("--values needs -o json: values may be any bytes"))
			}
			p := client.Page{Limit: pageSize}
			if len(args) == 1 {
				p.Prefix = args[0]
			}
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			documents := []keyDocument{}
			rows := [][]string{{"KEY", "VERSION", "TOKEN", "WATERMARK", "CONTENT TYPE"}}
			for more := true; more; more = p.After != "" {
				keys, next, err := c.List(ctx, p, values)
				if err != nil {
					return err
				}
				if next != "" && next <= p.After {
					return fmt.Errorf("list keys: page after %q goes back to %q", p.After, next)
				}
				p.After = next
				for _, k := range keys {
					d := keyDocument{k.Key, nil, k.Version, k.Token, k.Watermark, k.ContentType}
					if values {
						d.Value = &k.Value
					}
					documents = append(documents, d)
					rows = append(rows, []string{k.Key, number(k.Version), number(k.Token), number(k.Watermark), k.ContentType})
				}
			}
			if env.output == outputJSON {
				return env.printJSON(map[string]any{"keys": documents})
			}
			return env.table(rows...)
		},
	}
	c.Flags().BoolVar(&values, "values", false, "print values, too (with -o json)")
	return c
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
