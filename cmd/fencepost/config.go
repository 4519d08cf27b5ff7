package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// configure fills the flags of a command that the command line left open: from
// the environment, else from the file. It runs before anything reads a flag.
func configure(env *environment, cmd *cobra.Command) error {
	if err := fromEnvironment(cmd.Flags()); err != nil {
		return err
	}
	if env.config == "" {
		return nil
	}
	raw, err := os.ReadFile(env.config)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	if err := fromFile(raw, cmd); err != nil {
		return fmt.Errorf("%s: %w", env.config, err)
	}
	return nil
}

// settable says whether a flag may come from outside the command line. "version"
// may not: images tend to set FENCEPOST_VERSION for other ends.
func settable(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

func variable(flag string) string {
	return "FENCEPOST_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment ignores empty variables: a shell that clears one often leaves
// it so.
func fromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(variable(f.Name))
		if f.Changed || value == "" || !settable(f) {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", variable(f.Name), err))
		}
	})
	return errors.Join(errs...)
}

// fromFile checks the whole file, so that a mistake shows whatever command is
// run, and applies the part that is on the way to cmd.
func fromFile(raw []byte, cmd *cobra.Command) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 {
		return nil // empty
	}
	values := make(map[string]*yaml.Node)
	if err := section(doc.Content[0], cmd.Root(), cmd, values); err != nil {
		return err
	}
	for name, n := range values {
		f := cmd.Flags().Lookup(name)
		if f == nil || f.Changed {
			continue
		}
		value, err := flagValue(n)
		if err == nil {
			err = cmd.Flags().Set(name, value)
		}
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", n.Line, name, err)
		}
	}
	return nil
}

// section reads the part of the file that belongs to command at. Values of
// commands further down the way replace those from further up.
func section(n *yaml.Node, at, target *cobra.Command, values map[string]*yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s must be a mapping", n.Line, at.CommandPath())
	}
	seen := make(map[string]bool)
	var below *yaml.Node
	var next *cobra.Command
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			return fmt.Errorf("line %d: %q stands twice", key.Line, key.Value)
		}
		seen[key.Value] = true
		if sub := subcommand(at, key.Value); sub != nil {
			if onTheWay(sub, target) {
				below, next = value, sub
				continue
			}
			if err := section(value, sub, target, make(map[string]*yaml.Node)); err != nil {
				return err
			}
			continue
		}
		f := at.LocalFlags().Lookup(key.Value)
		if f == nil || !settable(f) || f.Name == "config" {
			return fmt.Errorf("line %d: unknown key %q: it is neither a flag nor a command of %q", key.Line, key.Value, at.CommandPath())
		}
		values[key.Value] = value
	}
	if below != nil {
		return section(below, next, target, values)
	}
	return nil
}

func subcommand(at *cobra.Command, name string) *cobra.Command {
	for _, c := range at.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

func onTheWay(c, target *cobra.Command) bool {
	for ; target != nil; target = target.Parent() {
		if target == c {
			return true
		}
	}
	return false
}

// flagValue is a YAML value as a flag's text: lists and mappings as the flags
// that take several values write them.
func flagValue(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.AliasNode:
		return flagValue(n.Alias)
	case yaml.ScalarNode:
		return n.Value, nil
	case yaml.SequenceNode:
		parts := make([]string, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return "", errors.New("must be a list of plain values")
			}
			parts[i] = item.Value
		}
		return strings.Join(parts, ","), nil
	case yaml.MappingNode:
		var parts []string
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Kind != yaml.ScalarNode {
				return "", errors.New("must be a mapping of plain values")
			}
			parts = append(parts, n.Content[i].Value+"="+n.Content[i+1].Value)
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("must be a value")
}
