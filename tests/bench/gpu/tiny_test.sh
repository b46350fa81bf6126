#!/usr/bin/env bash
# gpu_bench on the emulation, also behind a wrong answer and at the end of its time; its lines joined by gpu_report.py, and joins that must be
# refused or marked.
# usage: tiny_test.sh PROGRAM
set -euo pipefail
program=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" --tiny >"$work/ours.jsonl"
if "$program" --only=nothing >"$work/log" 2>&1; then echo "an unknown part was taken"; exit 1; fi
if "$program" >"$work/log" 2>&1; then echo "the emulation's speed was measured"; exit 1; fi
parts=--only=products,elements
if "$program" --tiny $parts --spoil="gemm o" >"$work/spoiled" 2>"$work/log"; then echo "a wrong answer is no failure"; exit 1; fi
[ "$(grep -c '"kind":"wrong"' "$work/spoiled")" = 3 ] && grep -q resolve "$work/spoiled" || { echo "it did not go on"; cat "$work/spoiled"; exit 1; }
"$program" --tiny $parts --seconds=0 >"$work/none"
if grep -v '"kind":"left_out"\|"kind":"device"' "$work/none"; then echo "it began behind its time"; exit 1; fi
command -v python3 >/dev/null || { echo "no python3 here: joins are not checked"; exit 0; }
exec python3 -B "$here/report_test.py" "$work"
