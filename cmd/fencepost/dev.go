package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"fencepost/cluster"
	"fencepost/httpapi"
)

const (
	devHTTPPort = 7001
	devRaftPort = 7101
	devMaxNodes = 5
)

func newDevCommand(env *environment) *cobra.Command {
	var nodes, watchHistory int
	var dataDir, logLevel string
	var logJSON bool
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, on loopback, to try things",
		Long: `Run a whole cluster in this process, on loopback, to try things. The nodes serve
HTTP on ports 7001, 7002 and so on. Without --data-dir the data goes away when
the process ends.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodes < 1 || nodes > devMaxNodes {
				return usageError(fmt.Errorf("--nodes must be 1 to %d, not %d", devMaxNodes, nodes))
			}
			if dataDir == "" {
				tmp, err := os.MkdirTemp("", "fencepost-dev-")
				if err != nil {
					return fmt.Errorf("make a directory for the data: %w", err)
				}
				defer os.RemoveAll(tmp)
				dataDir = tmp
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runDev(ctx, env, nodes, watchHistory, dataDir, logLevel, logJSON)
		},
	}
	c.Flags().IntVar(&nodes, "nodes", 3, "how many nodes")
	c.Flags().IntVar(&watchHistory, "watch-history", cluster.DefaultConfig().WatchHistory, "events that are kept to resume a watch, and as many renewals")
	c.Flags().StringVar(&dataDir, "data-dir", "", "directory that keeps the data")
	c.Flags().StringVar(&logLevel, "log-level", "error", "trace, debug, info, warn or error")
	c.Flags().BoolVar(&logJSON, "log-json", false, "log in JSON")
	return c
}

func runDev(ctx context.Context, env *environment, nodes, watchHistory int, dataDir, logLevel string, logJSON bool) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var peers []string
	for i := range nodes {
		peers = append(peers, fmt.Sprintf("http://127.0.0.1:%d", devHTTPPort+i))
	}
	writer := newLogWriter(env.stderr, logJSON)
	defer writer.flush()
	log, err := newLogger(writer, "dev", logLevel, logJSON)
	if err != nil {
		return err
	}
	raft := processMetrics(log)
	errs := make([]error, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		cfg := cluster.DefaultConfig()
		cfg.Name = fmt.Sprintf("n%d", i+1)
		cfg.DataDir = filepath.Join(dataDir, cfg.Name)
		cfg.HTTPAddr = fmt.Sprintf("127.0.0.1:%d", devHTTPPort+i)
		cfg.RaftAddr = fmt.Sprintf("127.0.0.1:%d", devRaftPort+i)
		cfg.Peers, cfg.Expect = peers, nodes
		cfg.WatchHistory = watchHistory
		cfg.Logger, cfg.Version = log.Named(cfg.Name), buildVersion()
		wg.Go(func() {
			if errs[i] = serveNode(ctx, cfg.HTTPAddr, cfg, httpapi.DefaultLimits(), raft, writer.flush); errs[i] != nil {
				stop() // one node that cannot run ends them all, with the reason
			}
		})
	}
	if awaitReady(ctx, peers) {
		printDevHelp(env, peers, dataDir)
	}
	wg.Wait()
	return errors.Join(errs...)
}

// awaitReady waits until all nodes serve, or ctx ends.
func awaitReady(ctx context.Context, urls []string) bool {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for _, url := range urls {
		for !ready(ctx, url) {
			select {
			case <-ctx.Done():
				return false
			case <-t.C:
			}
		}
	}
	return true
}

func ready(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func printDevHelp(env *environment, peers []string, dataDir string) {
	fmt.Fprintf(env.stdout, `A cluster of %d nodes is ready (data in %s). In another terminal, try:

  curl -X POST %[3]s/v1/leases/db/acquire -d '{"holder":"me","ttl_ms":60000}'
  curl -X PUT  %[3]s/v1/kv/greeting -H 'Fencing-Token: <the token>' -d hello
  curl         %[3]s/v1/kv/greeting
  curl         %[3]s/v1/cluster
  curl -N      %[3]s/v1/watch?from=1

`, len(peers), dataDir, peers[0])
	fmt.Fprintln(env.stdout, "Ctrl-C stops it.")
}
