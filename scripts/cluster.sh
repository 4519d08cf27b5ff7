#!/usr/bin/env bash
# A fencepost cluster of local processes, for trying things and for tests.
#
#   cluster.sh start [N]        N nodes (3) n1..nN; waits until all are ready
#   cluster.sh stop             TERM, and KILL for what is still there 10 s later
#   cluster.sh kill NODE        kill -9; prints the instant, in ns since 1970
#   cluster.sh pause NODE       SIGSTOP        cluster.sh resume NODE   SIGCONT
#   cluster.sh restart NODE     stops it if it runs, starts it, waits until ready
#   cluster.sh status           one line for each node
#   cluster.sh leader           the name of the leader
#
# Environment: FENCEPOST_DIR (./.cluster), BASE_HTTP (7001) and BASE_RAFT (7101: the
# ports of n1, the others follow; BASE_HTTP=auto takes free ones), remembered in the
# directory from the first start on; FENCEPOST_BIN (bin/fencepost, built if missing);
# READY_SECONDS (30).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${FENCEPOST_BIN:-$root/bin/fencepost}
dir=${FENCEPOST_DIR:-$PWD/.cluster}
ready_seconds=${READY_SECONDS:-30}
# Neither of these is meant for the nodes, which read FENCEPOST_<FLAG> themselves.
unset FENCEPOST_DIR FENCEPOST_BIN

fail() {
  echo "cluster.sh: $*" >&2
  exit 1
}

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# layout sets count, base_http and base_raft to what start has used.
layout() {
  [[ -r $dir/layout ]] || fail "no cluster in $dir: run 'cluster.sh start' first, or set FENCEPOST_DIR"
  read -r count base_http base_raft <"$dir/layout"
}

need_node() {
  layout
  if [[ ! ${1:-} =~ ^n[1-9]$ ]] || ((${1#n} > count)); then
    fail "'${1:-}' is no node of this cluster: use n1..n$count"
  fi
}

url() { echo "http://127.0.0.1:$((base_http + ${1#n} - 1))"; }

peers() {
  local i all=""
  for ((i = 1; i <= count; i++)); do all+="${all:+,}$(url "n$i")"; done
  echo "$all"
}

# pid_of prints the pid of a node that exists as a process. A number in a file is
# not enough: it may have become some other program's since.
pid_of() {
  local pid args
  [[ -r $dir/$1.pid ]] && read -r pid <"$dir/$1.pid" && [[ $pid =~ ^[0-9]+$ ]] || return 1
  args=$(ps -o args= -p "$pid" 2>/dev/null) || return 1
  [[ $args == *" server --name $1 --data-dir $dir/$1 "* ]] || return 1
  [[ $(ps -o stat= -p "$pid" 2>/dev/null) != Z* ]] || return 1
  echo "$pid"
}

# signal sends a signal to a node, which must be there.
signal() {
  local pid
  pid=$(pid_of "$2") || fail "$2 is not running"
  kill "-$1" "$pid"
}

# gone waits up to $2 tenths of a second until node $1 is no more.
gone() {
  local i
  for ((i = 0; i < $2; i++)); do
    pid_of "$1" >/dev/null || return 0
    sleep 0.1
  done
  return 1
}

ready() { curl -fs -o /dev/null --max-time 2 "$(url "$1")/readyz"; }

wait_ready() {
  local end=$((SECONDS + ready_seconds))
  while ((SECONDS < end)); do
    ready "$1" && return 0
    pid_of "$1" >/dev/null || fail "$1 has ended; the last lines of $dir/$1.log:
$(tail -n 5 "$dir/$1.log")"
    sleep 0.1
  done
  fail "$1 is not ready after ${ready_seconds}s: $(curl -s --max-time 2 "$(url "$1")/readyz" || echo 'no answer'); see $dir/$1.log"
}

launch() {
  if pid_of "$1" >/dev/null; then fail "$1 is running already"; fi
  local port=$((base_http + ${1#n} - 1)) raft=$((base_raft + ${1#n} - 1))
  mkdir -p "$dir/$1"
  nohup "$bin" server --name "$1" --data-dir "$dir/$1" --http-addr "127.0.0.1:$port" \
    --raft-addr "127.0.0.1:$raft" --peers "$(peers)" --expect "$count" \
    >>"$dir/$1.log" 2>&1 </dev/null &
  echo $! >"$dir/$1.pid"
}

stop_node() {
  local pid
  pid=$(pid_of "$1") || { rm -f "$dir/$1.pid"; return 0; }
  kill -TERM "$pid" 2>/dev/null || true
  kill -CONT "$pid" 2>/dev/null || true # a paused node has to wake up to end
  if ! gone "$1" 100; then
    echo "cluster.sh: $1 did not end within 10s: killing it" >&2
    kill -KILL "$pid" 2>/dev/null || true
    gone "$1" 50 || fail "$1 (pid $pid) survives KILL"
  fi
  rm -f "$dir/$1.pid"
}

is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_base prints the first of $1 ports that nobody listens on; they are below the
# range that the system gives out by itself.
free_base() {
  local try base i
  for ((try = 0; try < 100; try++)); do
    base=$((20000 + RANDOM % 10000))
    for ((i = 0; i < $1; i++)); do
      is_free $((base + i)) || continue 2
    done
    echo "$base"
    return 0
  done
  return 1
}

start() {
  local i
  local before="" http=7001 raft=7101
  count=${1:-3}
  [[ $count =~ ^[1-9]$ ]] || fail "start takes a number of nodes from 1 to 9, not '$count'"
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  if [[ -r $dir/layout ]]; then
    read -r before http raft <"$dir/layout"
    [[ $before == "$count" ]] || fail "$dir belongs to a cluster of $before nodes: use that number, or remove it"
  fi
  base_http=${BASE_HTTP:-$http} base_raft=${BASE_RAFT:-$raft}
  for ((i = 1; i <= count; i++)); do
    if pid_of "n$i" >/dev/null; then fail "n$i is running already: run 'cluster.sh stop' first"; fi
  done
  if [[ $base_http == auto ]]; then
    base_http=$(free_base $((2 * count))) || fail "found no free ports"
    base_raft=$((base_http + count))
  fi
  if [[ ! -x $bin ]]; then
    echo "building $bin" >&2
    (cd "$root" && go build -o "$bin" ./cmd/fencepost) || fail "building $bin failed"
  fi
  echo "$count $base_http $base_raft" >"$dir/layout"
  for ((i = 1; i <= count; i++)); do launch "n$i"; done
  for ((i = 1; i <= count; i++)); do wait_ready "n$i"; done
  peers
}

stop() {
  local i
  layout
  # In one go, so that the last ones are not left waiting for a quorum.
  for ((i = 1; i <= count; i++)); do stop_node "n$i" & done
  wait
  for ((i = 1; i <= count; i++)); do
    if pid_of "n$i" >/dev/null; then fail "n$i is still running"; fi
  done
}

# leader_url is what the first ready node names as leader.
leader_url() {
  local i found
  for ((i = 1; i <= count; i++)); do
    pid_of "n$i" >/dev/null || continue
    found=$(curl -fs -o /dev/null -D - --max-time 1 "$(url "n$i")/v1/cluster" |
      tr -d '\r' | sed -n 's/^[Ff]encepost-[Ll]eader: *//p') || continue
    if [[ -n $found ]]; then
      echo "$found"
      return 0
    fi
  done
  return 1
}

leader() {
  local i found
  layout
  found=$(leader_url) || fail "no node names a leader"
  for ((i = 1; i <= count; i++)); do
    if [[ $(url "n$i") == "${found%/}" ]]; then
      echo "n$i"
      return 0
    fi
  done
  fail "the leader $found is not one of ours"
}

status() {
  local i pid state mark found
  layout
  found=$(leader_url || true)
  printf '%-6s %-8s %-8s %-6s %-7s %s\n' NODE PID PROCESS READY LEADER URL
  for ((i = 1; i <= count; i++)); do
    pid=- state=down mark=-
    if pid=$(pid_of "n$i"); then
      state=running
      [[ $(ps -o stat= -p "$pid") != T* ]] || state=paused
    else
      pid=-
    fi
    [[ $(url "n$i") != "${found%/}" ]] || mark=leader
    printf '%-6s %-8s %-8s %-6s %-7s %s\n' "n$i" "$pid" "$state" \
      "$([[ $state == running ]] && ready "n$i" && echo yes || echo no)" "$mark" "$(url "n$i")"
  done
}

[[ ! -d $dir ]] || dir=$(cd "$dir" && pwd)
command=${1:-}
case $command in
  start) (($# <= 2)) || usage; start "${2:-3}" ;;
  stop) stop ;;
  kill)
    need_node "${2:-}"
    signal KILL "$2"
    echo "${EPOCHREALTIME//[.,]/}000" # no process in between: what measures outages needs it exact
    gone "$2" 50 || fail "$2 survives KILL"
    ;;
  pause) need_node "${2:-}"; signal STOP "$2" ;;
  resume) need_node "${2:-}"; signal CONT "$2" ;;
  restart)
    need_node "${2:-}"
    stop_node "$2"
    launch "$2"
    wait_ready "$2"
    ;;
  status) status ;;
  leader) leader ;;
  *) usage ;;
esac
