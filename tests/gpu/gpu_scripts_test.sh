#!/usr/bin/env bash
# run.sh and cuda_changes.sh say what happened: with programs that play a GPU's tests, and a small tree.
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
mkdir -p "$pack/bin" "$work/tools" "$work/site" "$work/result"
cp "$here/run.sh" "$here/libraries.sh" "$pack/"
echo "commit abc" >"$pack/made_from.txt"
echo "hash  workers/ops/x_cuda.cu" >"$pack/cuda_sources.txt"
echo libsy_none.so.9 >"$pack/cuda_libraries.txt"
script() { printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
script "$pack/bin/gpu_probe" 'echo "Test GPU, compute capability 9.0"'
ran='echo "[==========] 2 tests from 1 test suite ran. (1 ms total)"'
script "$pack/bin/good_gpu_test" "cat; echo '[       OK ] A.B (0 ms)'; $ran"
script "$pack/bin/half_gpu_test" "echo '[       OK ] A.B (0 ms)'; echo '[  SKIPPED ] A.C (0 ms)'; $ran; echo '[  SKIPPED ] 1 test, listed below:'"
script "$pack/bin/bad_gpu_test" "echo 'row 3 differs'; $ran; exit 1"
script "$pack/bin/none_gpu_test" "echo 'x.cc:1: skipped: no GPU'; echo '[  SKIPPED ] A.B (0 ms)'; $ran"
script "$pack/bin/speed" 'echo "12 GB/s"'
printf '%s\n' "gpu_probe tests/gpu" "good_gpu_test tests/workers/ops" "half_gpu_test tests/workers/model" "bad_gpu_test tests/workers" \
  "none_gpu_test tests/workers" "speed tests/bench" >"$pack/binaries.txt"
run() { env -u OUT PATH="$work/tools:$PATH" "$@" >"$work/out" 2>&1; }

script "$work/tools/compute-sanitizer" 'echo "Device not supported"; exit 1'
OUT=$work/result
run OUT="$OUT" "$pack/run.sh" && fail "a failed test is a failure"
says "libsy_none.so.9 is not on this machine .*"
says "Test GPU, compute capability 9.0.*; commit abc"
says "plain good_gpu_test: ok \(2 tests, [0-9]+ s\)"
says "plain half_gpu_test: ok \(2 tests, 1 test skipped, [0-9]+ s\)"
says "plain bad_gpu_test: FAILED with status 1 \(2 tests, [0-9]+ s\)"
says " +row 3 differs"
says "plain none_gpu_test: skipped: no GPU \(2 tests, [0-9]+ s\)"
says "compute-sanitizer is not here or does not work: its runs are left out"
says "- plain passed: good_gpu_test half_gpu_test"
says "- memcheck passed: nothing"
says "hash  workers/ops/x_cuda.cu"
says "2 passed, 1 failed, 1 skipped"
says_not "speed|racecheck good"
grep -q "Device not supported" "$OUT/gpu_report.txt" && grep -q "^commit abc" "$OUT/gpu_verified.md" || fail "no report in OUT"

# Finds an error in half_gpu_test, and takes its time over bad_gpu_test.
script "$work/tools/compute-sanitizer" 'case "$*" in *memcheck*half*) echo "Invalid read"; exit 86 ;; *memcheck*bad*) sleep 60 ;; esac'
run SY_GPU_LIMIT=1 "$pack/run.sh" && fail "an error that the sanitizer finds is a failure"
for tool in memcheck racecheck synccheck; do says "$tool good_gpu_test: ok .*"; done
says "memcheck half_gpu_test: FAILED with status 86 .*"
says "memcheck bad_gpu_test: skipped: took longer than 1 s .*"
says_not "racecheck half"
says "- racecheck passed: good_gpu_test"
run "$pack/run.sh" --plain good_gpu_test speed || fail "what was asked for passed"
says "2 passed, 0 failed, 0 skipped"
says_not "half|memcheck good"
exit $bad
