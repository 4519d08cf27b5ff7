#!/usr/bin/env bash
# Measures three processes on loopback, with fsync on: operations per second
# and latencies at 1, 16, 64 and 256 clients. Arguments go to `fencepost bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
FENCEPOST_DIR="$(mktemp -d "${TMPDIR:-/tmp}/fencepost-bench.XXXXXX")"
export FENCEPOST_DIR BASE_HTTP="${BASE_HTTP:-17001}" BASE_RAFT="${BASE_RAFT:-17101}"
finish() {
  scripts/cluster.sh stop >/dev/null || true
  rm -rf "$FENCEPOST_DIR"
}
trap finish EXIT
scripts/cluster.sh start 3 >&2
endpoints="http://127.0.0.1:$BASE_HTTP,http://127.0.0.1:$((BASE_HTTP + 1)),http://127.0.0.1:$((BASE_HTTP + 2))"
bin/fencepost bench --endpoints "$endpoints" "$@"
