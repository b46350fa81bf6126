#!/usr/bin/env bash
# deploy/quickstart.sh succeeds without a word of failure on the way.  Its steps before the server (packages, build) are
# played by programs that do nothing; server, workers and CLI are the real ones.   usage: quickstart_test.sh [BIN_DIR]
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

# A port may be taken: then another one.
for _ in 1 2 3; do
  port=$((20000 + RANDOM % 20000))
  status=0
  "$work/deploy/quickstart.sh" --once --port=$port --metrics_port=$((port + 3)) >"$work/out" 2>"$work/err" || status=$?
  grep -q 'cannot listen' "$work/err" || break
done
if [ $status -ne 0 ] || ! grep -q "^> In the beginning" "$work/out"; then
  echo "FAILED: exit code $status"
  cat "$work/out" "$work/err"
  exit 1
fi
if grep -E 'cannot reach|refused' "$work/out" "$work/err"; then
  echo "FAILED: it complains on its way"
  exit 1
fi
