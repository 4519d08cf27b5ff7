#!/usr/bin/env bash
# Kills the leader of a cluster of its own, again and again, under load, and checks
# every answer that the clients got. The last line is "N passed, N failed"; exit 1
# if any failed, 2 if it could not be carried through.
#
# Environment: KILLS (20), WORKERS (6), MAX_OUTAGE (2s), FENCEPOST_BIN
# (bin/fencepost, built if missing), KEEP=1 keeps logs and history.
#
# The load and the judge are scripts/chaosload; its main.go says why it is a
# program of its own.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kills=${KILLS:-20}
workers=${WORKERS:-6}
max_outage=${MAX_OUTAGE:-2s}
# However it goes, it ends: so many seconds for each kill, and some for the rest.
deadline=$((SECONDS + kills * 30 + 180))

work=$(mktemp -d)
load=""
export FENCEPOST_DIR=$work/cluster FENCEPOST_BIN=${FENCEPOST_BIN:-$root/bin/fencepost}
cluster=$root/scripts/cluster.sh

say() { echo "chaos: $*" >&2; }

fail() {
  say "$*"
  exit 2
}

load_runs() { [[ -n $load ]] && kill -0 "$load" 2>/dev/null; }

# end_load asks the load to finish, and waits; only our own child is signalled.
end_load() {
  local i
  load_runs || return 0
  kill -TERM "$load"
  for ((i = 0; i < 1200; i++)); do
    load_runs || return 0
    sleep 0.1
  done
  say "the load does not end: killing it"
  kill -KILL "$load"
  return 1
}

# shellcheck disable=SC2317,SC2329 # called by trap
cleanup() {
  local code=$?
  trap - EXIT INT TERM
  if load_runs; then kill -KILL "$load" 2>/dev/null || true; fi
  if [[ -r $FENCEPOST_DIR/layout ]]; then
    "$cluster" stop || say "some node could not be stopped, see above"
  fi
  if [[ ${KEEP:-} == 1 ]]; then
    say "kept: $work"
  else
    rm -rf "$work"
  fi
  exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ ! $kills =~ ^[1-9][0-9]*$ ]]; then fail "KILLS must be a number, not '$kills'"; fi
(cd "$root" && go build -o "$work/chaosload" ./scripts/chaosload) || fail "building the load failed"
export BASE_HTTP=auto
endpoints=$("$cluster" start 3) || fail "the cluster did not start"

"$work/chaosload" load -endpoints "$endpoints" -workers "$workers" -history "$work/history" &
load=$!

: >"$work/kills"
for ((n = 1; n <= kills; n++)); do
  ((SECONDS < deadline)) || fail "out of time after $((n - 1)) kills"
  load_runs || fail "the load has ended by itself before kill $n"
  sleep "0.$((RANDOM % 9 + 1))" # so that kills meet the load, and the elections, at any point
  leader=$("$work/chaosload" leader -endpoints "$endpoints") || fail "no leader before kill $n"
  read -r node term <<<"$leader"
  gone=true
  at=$("$cluster" kill "$node") || gone=false
  [[ $at =~ ^[0-9]+$ ]] || fail "kill $n: $node could not be killed"
  new_node="" new_term=0
  if leader=$("$work/chaosload" leader -endpoints "$endpoints" -not "$node" -above "$term"); then
    read -r new_node new_term <<<"$leader"
  fi
  printf '{"node":"%s","term":%d,"at":%d,"gone":%s,"new_leader":"%s","new_term":%d}\n' \
    "$node" "$term" "$at" "$gone" "$new_node" "$new_term" >>"$work/kills"
  say "kill $n of $kills: $node led in term $term, now ${new_node:-nobody} leads in term $new_term"
  "$cluster" restart "$node" || fail "$node did not come back after kill $n"
done

end_load || fail "the load did not end"
wait "$load" || fail "the load failed"
load=""
code=0
"$work/chaosload" check -history "$work/history" -kills "$work/kills" -outage "$max_outage" || code=$?
exit "$code"
