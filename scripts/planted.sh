#!/usr/bin/env bash
# Checks the checkers: puts one known bug after the other (testdata/planted) into a
# copy of the sources, and demands that the simulator, or the test that the patch
# names, finds it. The last line is "N passed, N failed": a bug that is not found has
# failed, and so has a patch that does not apply any more.
#
# Environment: FAILOVERS (500), how many the simulator may take to find one; PLANT, the
# name of one bug.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | grep -zv '^testdata/planted/' | xargs -0 cp --parents -t "$work"
passed=0 failed=0
for plant in testdata/planted/${PLANT:-*}.patch; do
  name=$(basename "$plant" .patch)
  run=$(sed -n 's/^run: //p' "$plant")
  run=${run:-go test -count 1 -run TestWorlds ./cluster/sim}
  if ! patch -d "$work" -s -p1 -F0 <"$plant" >/dev/null; then
    echo "FAIL $name: the patch does not apply any more"
    failed=$((failed + 1))
    exit 1 # the copy is no longer what it should be
  fi
  began=$SECONDS
  status=0
  (cd "$work" && SIM_FAILOVERS=${FAILOVERS:-500} SIM_SEED=1 timeout 600 $run) >"$work/out" 2>&1 || status=$?
  if ((status == 0 || status == 124)) || grep -q 'panic: test timed out' "$work/out"; then
    echo "FAIL $name: nothing has found it in time ($run)"
    failed=$((failed + 1))
  elif grep -q -e '\[build failed\]' -e '\[setup failed\]' "$work/out"; then
    echo "FAIL $name: it does not build"
    failed=$((failed + 1))
  else
    # What found it: the checks of the simulator, or the tests.
    by=$(sed -nE 's/^ +sim_test.go:[0-9]+: seed [0-9]+: (([A-Z0-9, ]+|[a-z])[^:]*): .*/\1/p' "$work/out" | sort -u | paste -sd';')
    if [[ -z $by ]]; then by=$(sed -nE 's/^ *--- FAIL: ([^ ]+).*/\1/p' "$work/out" | head -3 | paste -sd' '); fi
    if [[ -z $by ]]; then by=$(grep -m1 -E '^(panic|fatal error):' "$work/out" || true); fi
    echo "ok   $name ($(sed -n 's/^what: //p' "$plant")): found in $((SECONDS - began)) s by: ${by:-see the output}"
    passed=$((passed + 1))
  fi
  patch -d "$work" -s -R -p1 -F0 <"$plant" >/dev/null
done
echo "$passed passed, $failed failed"
((failed == 0))
