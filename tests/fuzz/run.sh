#!/usr/bin/env bash
# Builds the fuzz targets with clang 19 and runs each over its corpus for so many seconds; README.md.
# usage: tests/fuzz/run.sh [--seconds=60] [--only=NAME] [--jobs=N: targets at a time, and of the build]
# Prints a line a target.  Exit status 1: a finding, whose input is named; it is in build/fuzz/findings/.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=60 only='*' jobs=1
for arg in "$@"; do
  case "$arg" in
    --seconds=*) seconds=${arg#*=} ;;
    --only=*) only=${arg#*=} ;;
    --jobs=*) jobs=${arg#*=} ;;
    *) echo "run.sh: unknown argument $arg" >&2; exit 2 ;;
  esac
done
names=()
for folder in tests/fuzz/corpus/$only/; do [ -d "$folder" ] && names+=("$(basename "$folder")"); done
[ ${#names[@]} -gt 0 ] || { echo "run.sh: no target $only" >&2; exit 2; }

deploy/install-deps.sh --fuzz
# (As deploy/build.sh, with so many jobs.)
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
mkdir -p build/fuzz/findings build/fuzz/grown
cmake --preset fuzz >build/fuzz/configure.log 2>&1 || { tail -n 25 build/fuzz/configure.log >&2; exit 1; }
cmake --build build/fuzz --parallel "$jobs" --target "${names[@]/#/fuzz_}" >build/fuzz/build.log 2>&1 ||
  { tail -n 25 build/fuzz/build.log >&2; exit 1; }

# Protobuf, Abseil and gRPC are the distribution's, without checks of containers: those would see what is not there.
export ASAN_OPTIONS=detect_container_overflow=0:detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 SY_LOG=error
fuzz() {  # name; what it learns goes to build/fuzz/grown/NAME, where the next run begins
  local name=$1 log="build/fuzz/$1.log" status=0 result
  mkdir -p "build/fuzz/grown/$name"
  "build/fuzz/bin/fuzz_$name" "build/fuzz/grown/$name" "tests/fuzz/corpus/$name" -max_total_time="$seconds" -max_len=16384 \
    -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$name-" >"$log" 2>&1 || status=$?
  result="no finding"
  [ $status -eq 0 ] ||
    result="FINDING $(grep -aoE 'Test unit written to .*' "$log" | sed 's/.* //' | tail -n 1): $(grep -aE -m 1 'CHECK failed|runtime error:|ERROR: ' "$log" || echo "status $status")"
  printf '%-15s %9s executions, %6s edges, %6s features: %s\n' "$name" \
    "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)" \
    "$(grep -aoE 'ft: [0-9]+' "$log" | tail -n 1 | cut -d' ' -f2)" "$result"
  return $((status != 0))
}
export -f fuzz
export seconds
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' || exit 1
