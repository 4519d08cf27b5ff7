#!/usr/bin/env bash
# Lives through simulated failovers until FAILOVERS (2000) have been seen, with all
# checks, in as many processes as there are processors. The last line is
# "N passed, N failed", of simulated clusters; exit 1 if any failed.
#
# Environment: FAILOVERS; SEED (of the time), the first one; SIM_DIR (a new directory),
# where the evidence of a failure is left; LEDGER, a file to add a line to.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failovers=${FAILOVERS:-2000}
seed=${SEED:-$(($(date +%s) % 1000000 * 1000))}
jobs=$(nproc)
work=$(mktemp -d)
export SIM_DIR=${SIM_DIR:-$work}
pids=()
trap 'for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done' EXIT

go test -c -o "$work/sim.test" ./cluster/sim
began=$SECONDS
for ((i = 0; i < jobs; i++)); do
  SIM_FAILOVERS=$(((failovers + jobs - 1) / jobs)) SIM_SEED=$((seed + i * 100000)) \
    "$work/sim.test" -test.run TestWorlds -test.v -test.timeout 6h >"$work/out.$i" 2>&1 &
  pids+=($!)
done
failed=0
for p in "${pids[@]}"; do wait "$p" || failed=1; done
pids=()
cat "$work"/out.* | grep -E '^ +sim_test.go.*seed [0-9]+: ' | grep -v ' failovers in ' | head -20 || true
if ! grep -q '^total failovers' "$work/out.0"; then tail -50 "$work/out.0"; fi
# total adds up what the processes have printed under a name.
total() { awk -F'\t' -v name="$1" '$1 == name {n += $2} END {print n + 0}' "$work"/out.*; }
grep -hoE '^(landed|total) [^'$'\t'']+' "$work"/out.* | sort -u | while IFS= read -r name; do
  printf '%-50s %d\n' "$name" "$(total "$name")"
done
echo "seeds from $seed; $((SECONDS - began)) s on $jobs processors"
violations=$(total "total worlds with violations")
if ((failed)) && ((${violations:-0} == 0)); then violations=1; fi
if [[ -n ${LEDGER:-} ]]; then
  echo "| $(date -u +%F) | $(git rev-parse --short HEAD) | $seed | $(total 'total failovers') | $(total 'total worlds') | $(total 'total exchanges') | $(total 'total log entries') | $violations |" >>"$LEDGER"
fi
passed=$(($(total 'total worlds') - violations))
if ((failed)); then
  echo "the evidence is in $SIM_DIR, the output in $work"
else
  rm -rf "$work"
fi
echo "$passed passed, $violations failed"
exit "$failed"
