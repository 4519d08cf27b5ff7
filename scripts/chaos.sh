#!/usr/bin/env bash
# Three nodes, a load, and faults of all kinds; every answer is checked. The last
# line is "N passed, N failed"; exit 1 if any failed, 2 if it could not be carried
# through. What it does, and how to add a fault: scripts/chaos/doc.go.
#
#   scripts/chaos.sh                                  every nemesis, about a quarter of an hour
#   NEMESIS=N1,N6 HITS=100 SEED=42 scripts/chaos.sh   these
#   KILLS=20 scripts/chaos.sh                         as NEMESIS=N1 HITS=20
#   scripts/chaos.sh -list                            the table of nemeses
#
# Environment: NEMESIS, HITS, SEED, KILLS, MAX_OUTAGE (2s, of N1), LEDGER (a file that
# gets a line for each run), RELEASE=1 (the volumes of a release), KEEP=1 (keep the
# logs of passing runs, too), FENCEPOST_BIN (bin/fencepost, built if missing). Needs
# root, iproute2 and nftables for all but the faults that drop no packets, and strace,
# e2fsprogs and util-linux for those of disks; as root it installs what is missing where
# apt-get can.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${FENCEPOST_BIN:-$root/bin/fencepost}

fail() {
  echo "chaos: $*" >&2
  exit 2
}

need() { # command, package
  if command -v "$1" >/dev/null; then return 0; fi
  if command -v apt-get >/dev/null; then
    echo "chaos: installing $2" >&2
    { apt-get install -y "$2" || { apt-get update && apt-get install -y "$2"; }; } >/dev/null 2>&1 || true
  fi
  command -v "$1" >/dev/null || fail "$1 is missing: install $2"
}

arguments=()
if [[ -n ${KILLS:-} ]]; then
  [[ $KILLS =~ ^[1-9][0-9]*$ ]] || fail "KILLS must be a number, not '$KILLS'"
  NEMESIS=${NEMESIS:-N1} HITS=${HITS:-$KILLS}
fi
[[ -z ${NEMESIS:-} ]] || arguments+=(-nemesis "$NEMESIS")
[[ -z ${HITS:-} ]] || arguments+=(-hits "$HITS")
[[ -z ${SEED:-} ]] || arguments+=(-seed "$SEED")
[[ -z ${MAX_OUTAGE:-} ]] || arguments+=(-max-outage "$MAX_OUTAGE")
[[ -z ${LEDGER:-} ]] || arguments+=(-ledger "$LEDGER")
[[ ${RELEASE:-} != 1 ]] || arguments+=(-release)
[[ ${KEEP:-} != 1 ]] || arguments+=(-keep)

if ((EUID == 0)); then
  need ip iproute2
  need nft nftables
  need strace strace
  need mkfs.ext4 e2fsprogs
  need fsfreeze util-linux
fi
[[ -x $bin ]] || (cd "$root" && go build -o "$bin" ./cmd/fencepost) || fail "building $bin failed"
mkdir -p "$root/bin"
(cd "$root" && go build -o bin/chaos ./scripts/chaos) || fail "building the load failed"
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
# The nodes read FENCEPOST_<FLAG> themselves; this one is none of theirs.
unset FENCEPOST_BIN
exec "$root/bin/chaos" -bin "$bin" -commit "$commit" "${arguments[@]}" "$@"
