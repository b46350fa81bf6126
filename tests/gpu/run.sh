#!/usr/bin/env bash
# Runs what pack.sh packed on a machine with a GPU, in the tracked tree, within a budget of time: a smoke (the first test of each source, within
# the first minute), then all tests, then again under compute-sanitizer where that works: memcheck, racecheck and synccheck on the kernels' tests,
# memcheck on the rest.  A suite has a process; a test that crashes or takes too long costs itself, and the suite goes on behind it.
# usage: tests/gpu/run.sh [--pack=FILE|DIR (build/gpu/pack.tar.xz)] [--minutes=9] [--resume[=DIR]] [--plain] [--only=GLOB]
#   --resume    goes on behind what DIR (an earlier run's $OUT; default $OUT itself) has results of, by the same pack
#   --plain     no sanitizer        --only: tests whose "source suite.test" matches
# In $OUT (default build/gpu/out), as it is made: results.tsv (stage, test, verdict, ms, note), log.txt (output of what failed); at the end also
# left_out.txt (what time did not allow) and verified.md (for tests/gpu/VERIFIED.md).  SY_GPU_LIMIT: seconds for a test (120).
# Exit status: 0; 1 if a test failed; 3 if none did, but some are left out; 77 without a GPU.
set -uo pipefail
started=${EPOCHREALTIME/[^0-9]/}
cd "$(dirname "$0")/../.."
. tests/gpu/libraries.sh
pack=build/gpu/pack.tar.xz minutes=9 resume= plain=0 only='*'
out=${OUT:-build/gpu/out} limit=$((${SY_GPU_LIMIT:-120} * 1000))
for argument in "$@"; do
  case "$argument" in
    --pack=*) pack=${argument#*=} ;;
    --minutes=*) minutes=${argument#*=} ;;
    --resume) resume=$out ;;
    --resume=*) resume=${argument#*=} ;;
    --plain) plain=1 ;;
    --only=*) only=${argument#*=} ;;
    *) echo "run.sh: cannot take $argument" >&2; exit 2 ;;
  esac
done
[[ "$minutes" =~ ^[0-9]+$ ]] || { echo "run.sh: --minutes=$minutes is no number" >&2; exit 2; }
scratch=$(mktemp -d) program=
trap '[ -z "$program" ] || kill -9 -- "-$program" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 143' TERM INT
set_now() { now=$(((${EPOCHREALTIME/[^0-9]/} - started) / 1000)); }  # ms since the start
deadline=$((minutes * 60000 - 5000))                                  # what is left is for the end's report
pack=$(unpack "$pack" "$scratch") || { echo "run.sh: no pack" >&2; exit 2; }
find_libraries "$pack/cuda_libraries.txt"
device=$(timeout 60 "$pack/bin/gpu_probe" 2>&1)
status=$?
device=${device##*$'\n'}
[ $status -eq 0 ] || { echo "gpu_probe: $device"; exit $([ $status -eq 2 ] && echo 77 || echo 1); }

# --- results, here and in $out
mkdir -p "$out"
results=$out/results.tsv log=$out/log.txt
pack_is="pack $(cat "$pack/bin/gpu_tests" "$pack/tests.txt" | sha256sum | cut -c1-16)"
shown=0
declare -A verdict=() took=() counted=()
if [ -n "$resume" ] && [ "$(head -n 1 "$resume/results.tsv" 2>/dev/null)" = "$pack_is" ]; then
  [ "$resume" -ef "$out" ] || cp "$resume/results.tsv" "$resume/log.txt" "$out/"
  # A line counts if it has all fields and its end: a run that was killed may have left a part of one.
  {
    echo "$pack_is"
    head -n "$(wc -l <"$results")" "$results" | tail -n +2 | awk -F'\t' 'NF >= 5 && $3 ~ /^(ok|skipped|FAILED)$/ && $4 ~ /^[0-9]+$/'
  } >"$results.whole" && mv "$results.whole" "$results"
  while IFS=$'\t' read -r stage test word ms _; do
    verdict["$stage $test"]=$word took["$stage $test"]=$ms
  done < <(tail -n +2 "$results")
  echo "resumed behind ${#verdict[@]} results of $resume"
else
  [ -z "$resume" ] || echo "$resume has no results of this pack: begun anew"
  echo "$pack_is" >"$results"
  : >"$log"
fi
# record STAGE TEST WORD MS NOTE; of what failed also its output, `lines`.
record() {
  verdict["$1 $2"]=$3 took["$1 $2"]=$4
  counted[$3]=$((${counted[$3]:-0} + 1))
  printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$results"
  if [ "$3" = FAILED ]; then
    [ $((++shown)) -gt 20 ] || echo "  $1 $2: FAILED: $5"  # what a command says may be cut; log.txt has all
    [ $shown -gt 20 ] || [ ${#lines[@]} -eq 0 ] || printf '    %s\n' "${lines[@]:$((${#lines[@]} > 20 ? ${#lines[@]} - 20 : 0))}"
    [ "$(stat -c %s "$log")" -gt 8000000 ] || { echo "== $1 $2: $5"; printf '%s\n' "${lines[@]}"; } >>"$log"
  fi
  sync "$results" "$log" 2>/dev/null
}

# --- one process: `pending` tests of a group.  Sets `stopped` when time is over.
# What compute-sanitizer says of an error; not its first and last line, nor what goes on from another line.
complains() { [[ "$1" =~ ^=========\ [A-Z] && ! "$1" =~ COMPUTE-SANITIZER|SUMMARY|Warning ]]; }
end_of_test() {  # STAGE WORD: of `current`
  local note=
  [ "$2" = FAILED ] && note="the test failed"
  [ "$2" = skipped ] && note=$(printf '%s\n' "${lines[@]}" | grep -om1 'skipped: .*')
  if [ $complained -eq 1 ]; then
    record "$1" "$current" FAILED $((now - began)) "the sanitizer complains"
  else
    record "$1" "$current" "$2" $((now - began)) "$note"
  fi
  current= complained=0
}
read_output() {  # STAGE UNTIL: true at the program's end, false if it must be stopped.  Sets `orphans` if what it started still has the pipe.
  local stage=$1 until=$2 line part= end left code
  while set_now; do
    end=$until
    [ -z "$current" ] || [ $((began + limit)) -ge $end ] || end=$((began + limit))
    left=$((end - now))
    [ $left -gt 0 ] || return 1
    [ $left -lt 1000 ] || left=1000
    IFS= read -r -t $((left / 1000)).$(printf %03d $((left % 1000))) -u "$from" line
    code=$?
    if [ $code -gt 128 ]; then
      part+=$line
      [ $orphans -eq 0 ] || return 0
      kill -0 $program 2>/dev/null || orphans=1  # what it wrote is still read
      continue
    fi
    line=$part$line part=
    [ $code -eq 0 ] || [ -n "$line" ] || return 0
    [ ${#lines[@]} -ge 300 ] || lines+=("$line")
    set_now
    case "$line" in
      '[ RUN      ] '*)
        current=${line#'[ RUN      ] '} began=$now lines=() complained=0
        [ $((now + ${took["plain $current"]:-0} * (${#tool[@]} > 0 ? 3 : 1))) -lt "$until" ] || { current=; return 1; }
        ;;
      *'[       OK ] '*) [ -z "$current" ] || end_of_test "$stage" ok ;;
      *'[  FAILED  ] '*) [ -z "$current" ] || end_of_test "$stage" FAILED ;;
      *'[  SKIPPED ] '*) [ -z "$current" ] || end_of_test "$stage" skipped ;;
      =========*) ! complains "$line" || complained=1 ;;
    esac
  done
}
run_process() {  # STAGE GROUP UNTIL
  local from status ended=0 orphans=0 before=${#verdict[@]} failed=${counted[FAILED]:-0} test
  current= complained=0 lines=()
  # timeout gives it a process group, and ends it also where this script was killed.
  exec {from}< <(exec timeout -s KILL $((($3 - now) / 1000 + 3)) "${tool[@]}" "$pack/bin/gpu_tests" --gtest_color=no \
    --gtest_filter="$(IFS=:; echo "${pending[*]}")" 2>&1 </dev/null)
  program=$!
  if read_output "$1" "$3"; then ended=1; else kill -9 -- -$program 2>/dev/null; fi
  wait $program 2>/dev/null
  status=$?
  [ $orphans -eq 0 ] || kill -9 -- -$program 2>/dev/null
  # A crash is known by its status also where the program was to be stopped.
  if [ $ended -eq 1 ] || { [ -n "$current" ] && [ $status -gt 128 ] && [ $status -ne 137 ]; }; then
    if [ -n "$current" ]; then
      record "$1" "$current" FAILED $((now - began)) "crashed with status $status"
    elif [ ${#verdict[@]} -eq $before ]; then
      for test in "${pending[@]}"; do record "$1" "$test" FAILED 0 "did not run: status $status"; lines=(); done
    elif [ $status -ne 0 ] && [ "${counted[FAILED]:-0}" -eq $failed ]; then
      record "$1" "$2.*" FAILED 0 "status $status at its end"
    fi
  elif [ -n "$current" ] && [ $now -lt "$3" ]; then
    record "$1" "$current" $([ ${#tool[@]} -gt 0 ] && echo skipped || echo FAILED) $((now - began)) "took longer than $((limit / 1000)) s"
  else
    stopped=1
  fi
  program=
  exec {from}<&-
}

# run_group STAGE GROUP UNTIL TEST...: those that have no result yet.
run_group() {
  local stage=$1 group=$2 until=$3 began_at pending length test
  shift 3
  set_now
  began_at=$now counted=() stopped=0
  while [ $stopped -eq 0 ]; do
    pending=() length=0
    for test in "$@"; do
      [ -z "${verdict["$stage $test"]:-}" ] && [ $((length += ${#test} + 1)) -lt 100000 ] && pending+=("$test")
    done
    [ ${#pending[@]} -gt 0 ] || break
    set_now
    [ $((now + 3000)) -lt "$until" ] || break
    run_process "$stage" "$group" "$until"
  done
  [ ${#counted[@]} -gt 0 ] || return 0
  set_now
  echo "$stage $group: ${counted[ok]:-0} ok, ${counted[skipped]:-0} skipped, ${counted[FAILED]:-0} FAILED ($(((now - began_at) / 1000)) s)"
}

# --- stages.  `wanted`: "STAGE TEST" of all that were to run.
mapfile -t listed <"$pack/tests.txt"
wanted=() tool=()
# run_stage STAGE SOURCES (a pattern) [NOT]: suite by suite.
run_stage() {
  local line source test suite last= tests=()
  for line in "${listed[@]}" '. .'; do
    read -r source test <<<"$line"
    suite=${test%%.*}
    if [ "$suite" != "$last" ]; then
      [ ${#tests[@]} -eq 0 ] || run_group "$1" "$last" $deadline "${tests[@]}"
      last=$suite tests=()
    fi
    [[ "$source" != . && "$line" == $only && "$source" =~ $2 && ! "$source" =~ ${3:-^$} ]] || continue
    tests+=("$test")
    wanted+=("$1 $test")
  done
}
run_smoke() {
  local line source test room last= seen= tests=()
  for line in "${listed[@]}" '. .'; do
    read -r source test <<<"$line"
    room=${source%/*}
    if [ "$room" != "$last" ]; then
      [ ${#tests[@]} -eq 0 ] || run_group plain "smoke of $last" $((deadline < 60000 ? deadline : 60000)) "${tests[@]}"
      last=$room tests=()
    fi
    [[ "$line" == $only && "$source" != "$seen" && "$source" != . ]] || continue
    seen=$source
    tests+=("$test")
  done
}
find_sanitizer() {
  local candidate
  for candidate in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -x "$candidate" ] || continue
    timeout 60 "$candidate" --error-exitcode 86 "$pack/bin/gpu_probe" >"$scratch/said" 2>&1 && { echo "$candidate"; return; }
    { echo "== $candidate does not work here:"; cat "$scratch/said"; } >>"$log"
  done
}

echo "$device; $(head -n 1 "$pack/made_from.txt")"
run_smoke
set_now
echo "smoke ended after $((now / 1000)) s"
run_stage plain '.'
[ $plain -eq 1 ] || sanitizer=$(find_sanitizer)
if [ $plain -eq 0 ] && [ -z "$sanitizer" ]; then
  echo "compute-sanitizer is not here or does not work: its runs are left out"
elif [ $plain -eq 0 ]; then
  checked=("$sanitizer" --target-processes application-only --error-exitcode 86)
  tool=("${checked[@]}" --tool memcheck --report-api-errors no)
  run_stage memcheck '^tests/workers/ops/'
  for kind in racecheck synccheck; do
    tool=("${checked[@]}" --tool $kind)
    run_stage $kind '^tests/workers/ops/cuda/' '/elementwise_'  # which has neither shared memory nor barriers
  done
  tool=("${checked[@]}" --tool memcheck --report-api-errors no)
  run_stage memcheck '.' '^tests/workers/ops/|^tests/gpu/'  # NCCL under it, in several processes, takes longer than its deadlines
fi

# --- the end
for entry in "${wanted[@]}"; do [ -n "${verdict[$entry]:-}" ] || echo "$entry"; done >"$out/left_out.txt"
summary() {
  tail -n +2 "$results" | awk -F'\t' '
    { ++n[$1 " " $3] }
    !($1 in seen) { seen[$1]; stage[++stages] = $1 }
    $3 == "FAILED" && ++fails <= 40 { failed = failed "- FAILED: " $1 " " $2 ": " $5 "\n" }
    END {
      for (i = 1; i <= stages; ++i) { s = stage[i]; printf "- %s: %d ok, %d skipped, %d FAILED\n", s, n[s " ok"], n[s " skipped"], n[s " FAILED"] }
      if (fails > 40) failed = failed "- and " (fails - 40) " more FAILED: results.tsv\n"
      printf "%s", failed
    }'
}
{
  echo "## $(date -u +%F): $device"
  echo
  cat "$pack/made_from.txt"
  echo
  summary
  printf '\n```cuda-sources\n%s\n```\n' "$(cat "$pack/cuda_sources.txt")"
} >"$out/verified.md"
set_now
echo
summary
left=$(wc -l <"$out/left_out.txt")
failed=$(tail -n +2 "$results" | cut -f3 | grep -c FAILED)
echo "$failed failed, $left left out, $((now / 1000)) s; $out: results.tsv log.txt left_out.txt verified.md"
[ "$failed" -eq 0 ] || exit 1
[ "$left" -eq 0 ] || exit 3
