#!/usr/bin/env bash
# The GPU benchmarks: builds gpu_bench (or takes a packed one), runs it part by part, then the peers, within a budget of time, and joins all lines.
# A wrong answer or a crash costs what it is about, is a line, and makes status 1.  Without a GPU: one line, status 77.
# usage: run.sh [--pack=FILE|DIR] [--minutes=9] [--quick] [--tiny] [--only=PART,...]
#   --pack      what tests/gpu/pack.sh made: for a machine without compiler
#   --tiny      for the emulation: small shapes, no times
#   PART        ceilings products attention moe models rows elements exchange peers: also the order, without --only
#   $PYTHON     for the peers, with torch (default python3); $OUT (default build/gpu/out): gpu_bench.jsonl and gpu_peers.jsonl as they are made,
#               gpu_bench.log, gpu_tables.txt at the end
set -uo pipefail
cd "$(dirname "$0")/../../.."
. tests/gpu/libraries.sh
pack= minutes=9 both=() device=() parts=(ceilings products attention moe peers models rows elements exchange)
for argument in "$@"; do
  case "$argument" in
    --pack=*) pack=${argument#*=} ;;
    --minutes=*) minutes=${argument#*=} ;;
    --quick) both+=("$argument") ;;
    --tiny) both+=("$argument") device=(--device=cpu) ;;
    --only=*) IFS=, read -ra parts <<<"${argument#*=}" ;;
    *) echo "run.sh gpu: cannot take $argument; flags: --pack=FILE, --minutes=N, --quick, --tiny, --only=PART,..." >&2; exit 2 ;;
  esac
done
[[ "$minutes" =~ ^[0-9]+$ ]] || { echo "run.sh gpu: --minutes=$minutes is no number" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -n "$pack" ]; then
  pack=$(unpack "$pack" "$scratch") || { echo "run.sh gpu: no pack" >&2; exit 2; }
  programs=$pack/bin
  head -n 1 "$pack/made_from.txt"
  SY_COMMIT=$(sed -n 's/^commit \([0-9a-f]\{12\}\).*/\1/p' "$pack/made_from.txt")
  export SY_COMMIT
  find_libraries "$pack/cuda_libraries.txt"
else
  deploy/sees_gpu.sh || { echo "no GPU here"; exit 77; }
  cuda=$(deploy/sees_gpu.sh --toolkit) || true
  deploy/install-deps.sh --cuda="$cuda" && deploy/build.sh -DSY_CUDA_AT_MOST="$cuda" gpu_bench gpu_probe || exit 1
  programs=build/release/bin
fi
timeout 60 "$programs/gpu_probe"
case $? in 0) ;; 2) echo "no GPU here"; exit 77 ;; *) exit 1 ;; esac

out=${OUT:-build/gpu/out}
mkdir -p "$out"
ours=$out/gpu_bench.jsonl peers=$out/gpu_peers.jsonl log=$out/gpu_bench.log
: >"$ours"
: >"$peers"
: >"$log"
end=$((SECONDS + minutes * 60 - 10)) bad=0
# run_part PART FILE COMMAND...: what it prints goes to FILE, and to the log what it says.
run_part() {
  local part=$1 file=$2 left=$((end - SECONDS)) began=$SECONDS status
  shift 2
  if [ $left -lt 5 ]; then
    printf '{"kind": "left_out", "what": "%s"}\n' "$part" >>"$file"
    return
  fi
  timeout -k 5 $left "$@" --seconds=$((left - 4)) </dev/null >>"$file" 2>>"$log"
  status=$?
  echo "$part: status $status, $((SECONDS - began)) s"
  case $status in
    0) ;;
    1) bad=1 ;;  # and its lines say what was wrong
    *) bad=1; printf '\n{"kind": "wrong", "what": "%s", "reason": "ended with status %s"}\n' "$part" $status >>"$file" ;;
  esac
  sync "$file" "$log" 2>/dev/null
}
for part in "${parts[@]}"; do
  if [ "$part" = peers ]; then
    run_part peers "$peers" "${PYTHON:-python3}" -B tests/bench/gpu/peers.py "${both[@]}" "${device[@]}"
  else
    run_part "$part" "$ours" "$programs/gpu_bench" "${both[@]}" --only="$part"
  fi
done
"${PYTHON:-python3}" -B tests/bench/gpu/gpu_report.py "$ours" "$peers" | tee "$out/gpu_tables.txt" || bad=1
exit $bad
