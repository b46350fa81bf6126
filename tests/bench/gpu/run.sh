#!/usr/bin/env bash
# The GPU benchmarks: builds gpu_bench (or takes a packed one), runs it and moe_peers.py, joins both.  Without a GPU: one line, status 77.
# usage: run.sh [--pack DIR] [--vllm-wheel FILE] [--quick] [--only=PART,...]
#   --pack DIR   what tests/gpu/pack.sh made: for a machine without compiler
#   $PYTHON      with torch and triton, for the peers (default python3); $OUT: also leaves lines and tables there
set -euo pipefail
cd "$(dirname "$0")/../../.."
pack= wheel=() both=() ours=()
while [ $# -gt 0 ]; do
  case "$1" in
    --pack | --vllm-wheel)
      [ -n "${2:-}" ] || { echo "run.sh gpu: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --pack ]; then pack=$2; else wheel=("$1" "$2"); fi
      shift
      ;;
    --quick) both+=("$1") ;;
    --only=*) ours+=("$1") ;;
    *) echo "run.sh gpu: cannot take $1; flags: --pack DIR, --vllm-wheel FILE, --quick, --only=PART,..." >&2; exit 2 ;;
  esac
  shift
done
compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1 || { echo "no GPU here"; exit 77; }

if [ -n "$pack" ]; then
  program=$pack/bin/gpu_bench
  . tests/gpu/libraries.sh
  head -n 1 "$pack/made_from.txt"
  find_libraries "$pack/cuda_libraries.txt" || true  # one that is missing is told by the loader, too
else
  cuda=$(deploy/sees_gpu.sh --toolkit) || true
  deploy/install-deps.sh --cuda="$cuda"
  deploy/build.sh -DSY_CUDA_AT_MOST="$cuda" gpu_bench
  program=build/release/bin/gpu_bench
fi
out=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$out"' EXIT
python=${PYTHON:-python3}
"$program" "${both[@]}" "${ours[@]}" >"$out/gpu_bench.jsonl"
# Peers that fail say so in their lines; the tables then have a gap.
case "${ours[*]}" in
  '' | *moe*) "$python" -B tests/bench/gpu/moe_peers.py "${both[@]}" "${wheel[@]}" >"$out/moe_peers.jsonl" || echo "moe_peers.py: status $?" >&2 ;;
  *) : >"$out/moe_peers.jsonl" ;;
esac
"$python" -B tests/bench/gpu/gpu_report.py "$out/gpu_bench.jsonl" "$out/moe_peers.jsonl" | tee "$out/gpu_tables.txt"
