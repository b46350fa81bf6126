#!/usr/bin/env bash
# Runs official clients against a server on the demo model; README.md.  usage: tests/e2e/clients/run.sh [--python=PYTHON] [--bin=DIR]
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=python3 bin=build/release/bin
for arg in "$@"; do
  case "$arg" in
    --python=*) python=${arg#*=} ;;
    --bin=*) bin=${arg#*=} ;;
    *) echo "run.sh: unknown argument $arg" >&2; exit 2 ;;
  esac
done
log=$(mktemp)
"$bin/switchyard-server" --model=deploy/demo-model --port=0 --metrics_port=-1 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT
while kill -0 $server 2>/dev/null && ! grep -q ' ready: ' "$log"; do sleep 0.1; done
address=$(sed -nE 's/.* HTTP on (http:\/\/[^ ,]*).*/\1/p' "$log")
[ -n "$address" ] || { cat "$log" >&2; exit 1; }
"$python" tests/e2e/clients/suite.py "$address"
