#!/usr/bin/env bash
# gpu_bench on the emulation, its lines joined by gpu_report.py, and joins that must be refused or marked.
# usage: tiny_test.sh PROGRAM
set -euo pipefail
program=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" --tiny >"$work/ours.jsonl"
if "$program" --only=nothing >"$work/log" 2>&1; then echo "an unknown part was taken"; exit 1; fi
if "$program" >"$work/log" 2>&1; then echo "the emulation's speed was measured"; exit 1; fi
command -v python3 >/dev/null || { echo "no python3 here: joins are not checked"; exit 0; }
exec python3 -B "$here/report_test.py" "$work"
