#!/usr/bin/env bash
# Runs what pack.sh packed, on a machine with a GPU: every test, then again under compute-sanitizer where that works (memcheck; for the
# kernels' own tests, those of the room ops, also racecheck and synccheck).  Prints a line a run, the sum, and the text for tests/gpu/VERIFIED.md; with $OUT set
# also leaves gpu_report.txt (all output) and gpu_verified.md there.  Without a GPU every test is skipped.  Exit status 1 if a run failed.
# usage: run.sh [--plain] [NAME...]      --plain: no sanitizer; NAME: only these programs (also benchmarks, which do not run else)
# What a test starts runs without the sanitizer (ranks_gpu_test: NCCL under it, in several processes, takes longer than its deadlines).
# SY_GPU_LIMIT: seconds for a run (300); under a sanitizer one that takes longer is skipped.
set -uo pipefail
cd "$(dirname "$0")"
. ./libraries.sh
plain=0
if [ "${1:-}" = --plain ]; then
  plain=1
  shift
fi
only=("$@")
limit=${SY_GPU_LIMIT:-300}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log report=$work/report
: >"$report"

# A compute-sanitizer that works here with this driver, or nothing.
find_sanitizer() {
  local candidate
  for candidate in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -x "$candidate" ] || continue
    timeout 60 "$candidate" --error-exitcode 86 bin/gpu_probe >"$log" 2>&1 && { echo "$candidate"; return; }
    { echo "== $candidate does not work here:"; cat "$log"; } >>"$report"
  done
}
chosen() {
  local name
  [ ${#only[@]} -gt 0 ] || { [[ "$1" != gpu_probe && "$2" = tests/* && "$2" != tests/bench* ]]; return; }
  for name in "${only[@]}"; do [ "$name" = "$1" ] && return; done
  return 1
}

passed=0 failed=0 skipped=0
declare -A good=()
# run LABEL NAME COMMAND...: one run, one line.
run() {
  local label=$1 name=$2 status=0 began word tests
  shift 2
  began=$(date +%s)
  timeout -k 10 "$limit" "$@" </dev/null >"$log" 2>&1 || status=$?  # stdin: the list of what is to run
  { echo "== $label $name: status $status"; cat "$log"; } >>"$report"
  tests=$(sed -n -e 's/^\[==========\] \([0-9]* tests\{0,1\}\) .* ran\..*/\1, /p' -e 's/^\[  SKIPPED \] \([0-9]* tests\{0,1\}\), .*/\1 skipped, /p' "$log" | tr -d '\n')
  if [ "$status" = 124 ] && [ "$label" != plain ]; then
    word="skipped: took longer than $limit s" skipped=$((skipped + 1))
  elif [ "$status" != 0 ]; then
    word="FAILED with status $status" failed=$((failed + 1))
  elif grep -q '^\[  SKIPPED \]' "$log" && ! grep -q '^\[       OK \]' "$log"; then
    word=$(grep -om1 'skipped: .*' "$log" || echo skipped) skipped=$((skipped + 1))
  else
    word=ok passed=$((passed + 1)) good[$label]+=" $name"
  fi
  echo "$label $name: $word (${tests}$(($(date +%s) - began)) s)"
  [ "${word:0:6}" != FAILED ] || grep -vE '^\[ +(OK|RUN) ' "$log" | tail -n 30 | sed 's/^/    /'
}

find_libraries cuda_libraries.txt
device=$(bin/gpu_probe 2>&1 | tail -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo "$device${driver:+, driver $driver}; $(head -n 1 made_from.txt)"
while read -r name folder; do
  ! chosen "$name" "$folder" || run plain "$name" "bin/$name"
done <binaries.txt
sanitizer=
if [ $plain -eq 0 ] && bin/gpu_probe >/dev/null 2>&1; then
  sanitizer=$(find_sanitizer)
  [ -n "$sanitizer" ] || echo "compute-sanitizer is not here or does not work: its runs are left out"
fi
if [ -n "$sanitizer" ]; then
  while read -r name folder; do
    chosen "$name" "$folder" || continue
    tools=(memcheck)
    [[ "$folder" != */ops* ]] || tools+=(racecheck synccheck)
    for tool in "${tools[@]}"; do run "$tool" "$name" "$sanitizer" --tool "$tool" --target-processes application-only --error-exitcode 86 "bin/$name"; done
  done <binaries.txt
fi

verified() {
  echo "## $(date -u +%F): $device${driver:+, driver $driver}"
  echo
  cat made_from.txt
  echo
  for label in plain memcheck racecheck synccheck; do echo "- $label passed:${good[$label]:- nothing}"; done
  echo "- $passed passed, $failed failed, $skipped skipped"
  echo
  printf '```cuda-sources\n'
  cat cuda_sources.txt
  printf '```\n'
}
echo
if [ -n "${good[plain]:-}" ]; then
  echo "For tests/gpu/VERIFIED.md, in place of what is there$([ $failed -eq 0 ] || echo ', once nothing fails'):"
  verified
fi
if [ -n "${OUT:-}" ]; then
  cp "$report" "$OUT/gpu_report.txt"
  verified >"$OUT/gpu_verified.md"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
