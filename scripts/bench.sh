#!/usr/bin/env bash
# Measures a cluster of its own, three processes on loopback, with "fencepost
# bench". Arguments go to that command: scripts/bench.sh --works renew -o json
#
# Driver and servers share the machine, so numbers are for comparing two builds on
# one machine, in one sitting. Environment: FENCEPOST_BIN (bin/fencepost, built
# if missing), BENCH_DIR: where the data goes (a temporary directory; it decides
# which disk is measured).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/fencepost-bench-XXXXXX")
bin=${FENCEPOST_BIN:-$root/bin/fencepost}
cluster=$root/scripts/cluster.sh

# shellcheck disable=SC2317,SC2329 # called by trap
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  if [[ -r $work/cluster/layout ]]; then
    FENCEPOST_DIR=$work/cluster "$cluster" stop || echo "bench: some node could not be stopped" >&2
  fi
  rm -rf "$work"
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

endpoints=$(FENCEPOST_DIR=$work/cluster FENCEPOST_BIN=$bin BASE_HTTP=auto "$cluster" start 3)
"$bin" bench --endpoints "$endpoints" "$@"
