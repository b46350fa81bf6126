#!/usr/bin/env bash
# A worker on another machine joins with its server's address and its model, and nothing else.
#
# Two network namespaces of this script's own, joined by a pair of virtual Ethernet devices, simulate two machines: the
# server with one local worker is on 192.168.77.1 (or listens on all addresses), the other worker on 192.168.77.2.  Neither
# sees the other's loopback.  Greedy tokens must be those of one worker alone.  Exit code 77 (skipped) where namespaces
# are not permitted.   usage: elsewhere_test.sh [BIN_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(realpath "${1:-${SY_TEST_BIN_DIR:-build/release/bin}}")
model=tests/golden/models/qwen3-qknorm

if [ "${SY_ELSEWHERE_INSIDE:-}" != 1 ]; then
  command -v ip >/dev/null || { echo "skipped: no ip (package iproute2)"; exit 77; }
  unshare -Urnm true 2>/dev/null || { echo "skipped: namespaces are not permitted here"; exit 77; }
  SY_ELSEWHERE_INSIDE=1 exec unshare -Urnm --kill-child --fork "$0" "$bin"
fi

work=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $1"
  tail -n 30 "$work"/*.log
  exit 1
}

# The other machine: a process that holds its namespace.
unshare -n sleep 600 &
other=$!
pids+=("$other")
here=$(readlink /proc/self/ns/net)
for _ in $(seq 100); do
  [ "$(readlink "/proc/$other/ns/net")" != "$here" ] && break
  sleep 0.05
done
there=(nsenter -t "$other" -n)  # no function: $! must be the program itself
if ! ip link add near type veth peer name far netns "$other" 2>"$work/veth.log"; then
  echo "skipped: no virtual Ethernet devices here: $(cat "$work/veth.log")"
  exit 77
fi
ip addr add 192.168.77.1/24 dev near
ip addr add 198.51.100.1/32 dev near
ip link set near up
ip link set lo up
"${there[@]}" ip addr add 192.168.77.2/24 dev far
"${there[@]}" ip link set far up
"${there[@]}" ip link set lo up

(umask 077; head -c 24 /dev/urandom | base64 >"$work/token")

# start NAME FLAGS...: a server; its port is in $port, that of workers, if any, in $worker_port.
start() {
  local name=$1
  shift
  : >"$work/$name.log"
  "$bin/switchyard-server" --model="$model" --port=0 --metrics_port=-1 --threads=1 "$@" 2>"$work/$name.log" &
  server=$!
  pids+=("$server")
  port=
  for _ in $(seq 400); do
    port=$(sed -n 's/.*gRPC on [^ ]*:\([0-9]*\).*/\1/p' "$work/$name.log")
    worker_port=$(sed -n 's/.*workers on [^ ]*:\([0-9]*\).*/\1/p' "$work/$name.log")
    [ -n "$port" ] && return
    sleep 0.05
  done
  fail "$name did not start"
}
# ask HOST OUT: waits until it is ready, then four greedy answers.
ask() {
  "$bin/switchyard" status --server="$1:$port" --wait=60 >"$work/status.log" 2>&1 || fail "$2: not ready"
  printf '{"token_ids": [%s], "temperature": 0, "max_tokens": 48, "ignore_eos": true}\n' \
    "5, 9" "7, 8, 9, 10, 11" "100" "$(seq -s, 3 120)" |
    "$bin/switchyard" generate --server="$1:$port" --input=- --json >"$work/raw" || fail "$2: no answers"
  sed 's/.*"token_ids": *\[\([0-9, ]*\)\].*/\1/' "$work/raw" >"$work/$2.ids"
  [ "$(wc -l <"$work/$2.ids")" -eq 4 ] && [ "$(wc -c <"$work/$2.ids")" -gt 400 ] || fail "$2: answers without tokens"
}
stop() {
  kill -TERM "$@"
  wait "$@" 2>/dev/null || true
}

start one --local_workers=1
ask 127.0.0.1 one
stop "$server"

# Without a token, anybody who reaches the port could join.
if "$bin/switchyard-server" --model="$model" --port=0 --metrics_port=-1 --worker_host=192.168.77.1 --insecure --workers=2 2>"$work/no-token.log"; then
  fail "a server without a token started"
fi
grep -q -e '--join_token_file: missing' "$work/no-token.log" || fail "no word of the token"

# An address that is not private: --insecure is the server's word for its own workers, too, which then meet on loopback.
for host in 192.168.77.1 198.51.100.1; do
  start "alone-$host" --host="$host" --insecure --local_workers=2
  ask "$host" "alone-$host"
  cmp "$work/one.ids" "$work/alone-$host.ids" || fail "a server on $host answers otherwise"
  stop "$server"
  echo "ok: server on $host with two workers of its own"
done

for host in 192.168.77.1 0.0.0.0; do
  # (By its processes the other machine is this one, whose experts could be read in place.)
  start "$host" --placement=static --host="$host" --worker_host="$host" --insecure --local_workers=1 --workers=2 --join_token_file="$work/token"
  "${there[@]}" "$bin/switchyard-worker" --server="192.168.77.1:$worker_port" --model="$model" --join_token_file="$work/token" 2>"$work/worker-$host.log" &
  worker=$!
  pids+=("$worker")
  ask 192.168.77.1 "two-$host"
  cmp "$work/one.ids" "$work/two-$host.ids" || fail "two workers ($host) answer otherwise than one"
  "${there[@]}" "$bin/switchyard" status --server="192.168.77.1:$port" >"$work/status.log" || fail "no status from the other machine"
  stop "$worker" "$server"
  echo "ok: server on $host, one worker beside it, one elsewhere: the tokens of one worker"
done
