#!/usr/bin/env bash
# deploy/quickstart.sh succeeds without a word of failure on the way, and the demo model answers its question.
# The steps before the server (packages, build) are played by programs that do nothing; server, workers and CLI are the real
# ones.   usage: quickstart_test.sh [BIN_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
bin=$(realpath "${1:-${SY_TEST_BIN_DIR:-build/release/bin}}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/deploy" "$work/build/release"
cp deploy/quickstart.sh "$work/deploy/"
ln -s "$root/deploy/demo-model" "$work/deploy/demo-model"
ln -s "$bin" "$work/build/release/bin"
for step in install-deps build; do printf '#!/bin/sh\n' >"$work/deploy/$step.sh"; done
printf '#!/bin/sh\nexit 1\n' >"$work/deploy/sees_gpu.sh"
chmod +x "$work"/deploy/*.sh

# A port may be taken: then another one.  All lie below those that connections are given.
for _ in 1 2 3; do
  port=$((20000 + RANDOM % 12000))
  status=0
  "$work/deploy/quickstart.sh" --once --port=$port --metrics_port=$((port + 3)) >"$work/out" 2>"$work/err" || status=$?
  grep -q 'cannot listen' "$work/err" || break
done
if [ $status -ne 0 ] || ! grep -A 1 '^> What is the capital of France?' "$work/out" | grep -q '^The capital of France is Paris\.'; then
  echo "FAILED: exit code $status"
  cat "$work/out" "$work/err"
  exit 1
fi
if grep -E 'cannot reach|refused' "$work/out" "$work/err"; then
  echo "FAILED: it complains on its way"
  exit 1
fi

# Until it is stopped it says what runs, what to try and which real model to take.
"$work/deploy/quickstart.sh" --port=$port --metrics_port=$((port + 3)) >"$work/out" 2>"$work/err" &
quickstart=$!
until grep -q '^(hf comes with' "$work/out"; do
  kill -0 $quickstart 2>/dev/null || break
  sleep 0.1
done
http=$(sed -n 's,^  web page  \(http://127.0.0.1:[0-9]*\)/ .*,\1,p' "$work/out")
health=$(exec 3<>"/dev/tcp/127.0.0.1/${http##*:}" && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && timeout 20 head -n 1 <&3) || true
kill -TERM $quickstart
status=0
wait $quickstart || status=$?
for line in "gRPC      127.0.0.1:$port" "switchyard chat --server=127.0.0.1:$port" "curl $http/v1/completions" 'is a toy' 'hf download '; do
  grep -qF "$line" "$work/out" || { echo "FAILED: it does not say: $line"; status=1; }
done
if [ $status -ne 130 ] || [[ "$health" != *" 200 "* ]] || grep -qE 'cannot reach|refused' "$work/err"; then
  echo "FAILED: exit code $status, /health: $health"
  cat "$work/out" "$work/err"
  exit 1
fi
