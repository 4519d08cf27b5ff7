package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (-X main.version=...) and by nothing else; empty
// in a plain go build.
var version string

// buildVersion is what this program calls itself: the linker's word, else the
// module's version, else the commit it was built from, else "dev".
func buildVersion() string { return describeBuild().Version }

type buildDescription struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func describeBuild() buildDescription {
	b := buildDescription{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
	}
	if b.Version == "" && b.Commit != "" {
		b.Version = b.Commit[:min(12, len(b.Commit))]
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}

func newVersionCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := describeBuild()
			if env.output == outputJSON {
				return env.printJSON(b)
			}
			fmt.Fprintf(env.stdout, "fencepost %s (%s, %s", b.Version, b.Go, b.Platform)
			if b.Commit != "" {
				fmt.Fprintf(env.stdout, ", commit %s", b.Commit)
			}
			if b.Modified {
				fmt.Fprint(env.stdout, ", modified")
			}
			fmt.Fprintln(env.stdout, ")")
			return nil
		},
	}
}
