#!/usr/bin/env bash
# run.sh, tests/bench/gpu/run.sh and cuda_changes.sh say what happened, with programs that play a GPU's tests, and a small tree: also where a
# test crashes or hangs, where time ends, and where a run is killed and another goes on.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
fail() { echo "FAILED: $1"; sed 's/^/    /' "$work/out"; bad=1; }
says() { grep -qxE -e "$1" "$work/out" || fail "no line: $1"; }
says_not() { ! grep -qE -e "$1" "$work/out" || fail "a line: $1"; }

# --- cuda_changes.sh
tree=$work/tree
mkdir -p "$tree/workers/ops/cuda" "$tree/workers/comm" "$tree/workers/tensor" "$tree/workers/model" "$tree/tests/gpu"
for file in ops/same_cuda.cu ops/changed_cuda.cu ops/cuda/new.h ops/plain.cc comm/nccl_x.cc tensor/cuda_y.cc \
  tensor/int_upload.cc tensor/device_writer.cc model/runner_device.cc; do echo "$file" >"$tree/workers/$file"; done
echo other >"$tree/tests/gpu/none_cuda.h"
git -C "$tree" init -q
"$here/cuda_changes.sh" --list "$tree" >"$work/out"
[ "$(wc -l <"$work/out")" = 8 ] || fail "not 8 CUDA sources"
{
  printf '# x\n```cuda-sources\n'
  grep -E 'same|changed|nccl|cuda_y|upload|writer|runner' "$work/out"
  printf '%064d  workers/gone_cuda.cu\n```\n' 0
} >"$tree/tests/gpu/VERIFIED.md"
echo more >>"$tree/workers/ops/changed_cuda.cu"
"$here/cuda_changes.sh" "$tree" >"$work/out" || fail "a change is no failure"
says "changed: workers/ops/changed_cuda.cu"
says "new:     workers/ops/cuda/new.h"
says "gone:    workers/gone_cuda.cu"
says "2 of 8 CUDA source files have not run on a GPU as they are"
says_not "same"
echo '```cuda-sources' >"$tree/tests/gpu/VERIFIED.md"
"$here/cuda_changes.sh" "$tree" >"$work/out" || fail "an empty list is no failure"
says "8 of 8 CUDA source files have not run on a GPU as they are"
echo "# no list" >"$tree/tests/gpu/VERIFIED.md"
"$here/cuda_changes.sh" "$tree" >"$work/out" && fail "no list is a failure"
printf '```cuda-sources\n12  file\n```\n' >"$tree/tests/gpu/VERIFIED.md"
"$here/cuda_changes.sh" "$tree" >"$work/out" && fail "a broken list is a failure"

# --- run.sh
pack=$work/pack
mkdir -p "$pack/bin" "$work/tools"
echo "commit abc" >"$pack/made_from.txt"
echo "hash  workers/ops/x_cuda.cu" >"$pack/cuda_sources.txt"
echo libsy_none.so.9 >"$pack/cuda_libraries.txt"
program() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"; chmod +x "$1"; }
program "$pack/bin/gpu_probe" 'echo "Test GPU, compute capability 9.0"'
# Prints what GoogleTest would of the tests of its filter; what a test does is its name.
program "$pack/bin/gpu_tests" '
for argument in "$@"; do case "$argument" in --gtest_filter=*) IFS=: read -ra tests <<<"${argument#*=}" ;; esac; done
echo "started ${#tests[@]}" >>"$STARTS"
status=0
for test in "${tests[@]}"; do
  echo "[ RUN      ] $test"
  echo "$test" >>"$STARTS"
  case "$test" in
    *Bad*) echo "row 3 differs"; echo "[  FAILED  ] $test, where GetParam() = 1 (0 ms)"; status=1; continue ;;
    *Crash*) kill -SEGV $$ ;;
    *Orphan*) sleep 60 & kill -SEGV $$ ;;
    *Hang*) [ -e "$STARTS.free" ] || sleep 60 ;;
    *Skip*) echo "x.cc:1: skipped: needs 2 GPUs"; echo "[  SKIPPED ] $test (0 ms)"; continue ;;
    *Memory*) [ -z "$SANITIZED" ] || echo "========= Invalid __global__ read of size 4 bytes" ;;
  esac
  echo "[       OK ] $test (0 ms)"
done
echo "[==========] ${#tests[@]} tests ran."
exit $status'
printf '%s\n' "tests/workers/ops/cuda/a_test.cc A.First" "tests/workers/ops/cuda/a_test.cc A.Memory" "tests/workers/ops/cuda/a_test.cc A.Last" \
  "tests/workers/ops/cuda/elementwise_test.cc E/B.Only/0" "tests/workers/model/c_test.cc C.Good" "tests/workers/model/c_test.cc C.Skip" \
  "tests/workers/model/c_test.cc C.After" >"$pack/tests.txt"
export STARTS=$work/starts SANITIZED=
run() { : >"$STARTS"; PATH="$work/tools:$PATH" "$here/run.sh" --pack="$pack" "$@" >"$work/out" 2>&1; }
listed() { printf 'tests/workers/%s\n' "$@" >>"$pack/tests.txt"; }
export OUT=$work/result

program "$work/tools/compute-sanitizer" 'echo "Device not supported"; exit 1'
run || fail "all is well, and status $?"
says "libsy_none.so.9 is not on this machine .*"
says "Test GPU, compute capability 9.0; commit abc"
says "plain smoke of tests/workers/ops/cuda: 2 ok, 0 skipped, 0 FAILED \([0-9]+ s\)"
says "plain A: 2 ok, 0 skipped, 0 FAILED \([0-9]+ s\)"
says "plain C: 1 ok, 1 skipped, 0 FAILED \([0-9]+ s\)"
says "compute-sanitizer is not here or does not work: its runs are left out"
says "0 failed, 0 left out, .*"
grep -q "Device not supported" "$OUT/log.txt" || fail "no word of the sanitizer in the log"
grep -q "^hash  workers/ops/x_cuda.cu" "$OUT/verified.md" && grep -q -- "- plain: 6 ok, 1 skipped, 0 FAILED" "$OUT/verified.md" || fail "verified.md"
[ "$(head -n 2 "$STARTS" | tail -n 1)" = A.First ] && [ "$(wc -l <"$OUT/results.tsv")" = 8 ] || fail "a test ran twice, or not first"
run --resume || fail "what has run is well"
[ ! -s "$STARTS" ] || fail "what has a result ran again"

# A sanitizer that works: its word counts against the test that runs.
program "$work/tools/compute-sanitizer" 'shift; while [ "${1#/}" = "$1" ]; do shift; done; SANITIZED=1 exec "$@"'
run && fail "an error that the sanitizer finds is a failure"
says "  memcheck A.Memory: FAILED: the sanitizer complains"
says "memcheck A: 2 ok, 0 skipped, 1 FAILED .*"
says "racecheck A: 2 ok, 0 skipped, 1 FAILED .*"
says "memcheck C: .*"
says_not "racecheck (E|C)|synccheck C"
run --plain --only='*cuda/a_test*' || fail "what was asked for passed"
says_not "plain C|memcheck"

# A crash and a test that hangs cost one test each; their words are kept.  A crash is one also where a child of it lives on.
listed "model/d_test.cc D.Good" "model/d_test.cc D.Crash" "model/d_test.cc D.Orphan" "model/d_test.cc D.Bad" "model/d_test.cc D.Hang" \
  "model/d_test.cc D.End"
SY_GPU_LIMIT=1 run --plain && fail "a failed test is a failure"
says "  plain D.Crash: FAILED: crashed with status (139|[0-9]+)"
says "  plain D.Orphan: FAILED: crashed with status (139|[0-9]+)"
says "  plain D.Hang: FAILED: took longer than 1 s"
says " +row 3 differs"
says "plain D: 1 ok, 0 skipped, 4 FAILED \([0-9]+ s\)"
says "4 failed, 0 left out, .*"
grep -q "row 3 differs" "$OUT/log.txt" || fail "no output of a failed test"
began=$SECONDS
run --plain --only='*D.[OE]*' && fail "an orphan's crash is a failure"
[ $((SECONDS - began)) -lt 30 ] || fail "a crash took as long as the limit"
says "  plain D.Orphan: FAILED: crashed with status (139|[0-9]+)"

# Time that ends: what began is stopped, the rest is listed, and the next run goes on there; so also behind a run that was killed.
sed -i '/D.Crash\|D.Orphan\|D.Bad/d' "$pack/tests.txt"
began=$SECONDS
run --plain --minutes=0 && fail "nothing can run in no time"
[ $((SECONDS - began)) -lt 10 ] && grep -qx "plain D.Hang" "$OUT/left_out.txt" || fail "what is left out is not said"
run --plain --minutes=x && fail "a number of minutes"
rm -rf "$OUT" && : >"$STARTS"
"$here/run.sh" --pack="$pack" --plain --only='*[A-D].*' >"$work/out" 2>&1 &
killed=$!
for _ in $(seq 100); do grep -q "D.Hang" "$STARTS" && break; sleep 0.1; done
kill -9 $killed
wait $killed 2>/dev/null || true
grep -q "D.Good" "$OUT/results.tsv" || fail "a killed run left no results"
printf 'plain\tD.End\tok\nplain\tD.End\tok\t12\t' >>"$OUT/results.tsv"  # lines that were cut off
: >"$STARTS.free"
mv "$OUT" "$work/before"
run --plain --resume="$work/before" || fail "the run behind a killed one"
says "resumed behind [0-9]+ results of .*"
grep -q "^D.Hang" "$STARTS" && ! grep -q "D.Good" "$STARTS" || fail "it did not go on behind the killed one"
grep -q "^D.End" "$STARTS" || fail "a part of a line counted as a result"
says "- plain: 9 ok, 1 skipped, 0 FAILED"
listed "model/e_test.cc F.New"
run --plain --resume || fail "another pack"
says ".* has no results of this pack: begun anew"
program "$pack/bin/gpu_probe" 'echo "no GPU: none"; exit 2'
status=0
run || status=$?
[ $status -eq 77 ] || fail "without a GPU: status $status"
program "$pack/bin/gpu_probe" 'echo "Test GPU"'
program "$pack/bin/gpu_tests" 'echo "no such library"; exit 127'
run --plain && fail "a program that cannot start"
says "  plain A.First: FAILED: did not run: status 127"

# --- pack.sh: names a library that is not there.
mkdir -p "$work/built/bin"
for name in gpu_tests gpu_bench gpu_probe; do program "$work/built/bin/$name" 'echo "no such library"; exit 127'; done
program "$work/tools/strip" 'cp "$3" "$2"'
program "$work/tools/ldd" 'printf "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibsy_gone.so.1 => not found\n"'
PATH="$work/tools:$PATH" "$here/pack.sh" --built="$work/built" --to="$work/pack.tar.xz" >"$work/out" 2>&1 && fail "a library is missing"
says "pack.sh: libraries that ldd does not find: libsy_gone.so.1"

# --- tests/bench/gpu/run.sh: a part that crashes, one that is wrong and one that hangs cost themselves.
program "$pack/bin/gpu_bench" '
for argument in "$@"; do case "$argument" in --only=*) part=${argument#*=} ;; esac; done
case "$part" in
  rows) printf "{\"kind\": \"op\", \"o"; kill -SEGV $$ ;;
  moe) echo "{\"kind\": \"wrong\", \"what\": \"moe A\", \"reason\": \"differs\"}"; exit 1 ;;
  *) echo "{\"kind\": \"op\", \"op\": \"$part\", \"shape\": \"S\", \"bytes\": 4, \"seconds\": 1}" ;;
esac'
if command -v python3 >/dev/null; then
  rm -rf "$OUT"
  "$here/../bench/gpu/run.sh" --pack="$pack" --only=rows,moe,attention >"$work/out" 2>&1 && fail "a wrong answer is a failure"
  says "rows: status (139|[0-9]+), [0-9]+ s"
  says "WRONG: moe A: differs"
  says "WRONG: rows: ended with status [0-9]+"
  says "attention +S .*"
  "$here/../bench/gpu/run.sh" --pack="$pack" --only=attention --minutes=0 >"$work/out" 2>&1 || fail "what is left out is no failure"
  says "left out: attention"
fi
exit $bad
