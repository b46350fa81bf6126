#!/usr/bin/env bash
# Installs, builds and runs every test.  usage: tests/run.sh [--preset release|clang|asan|tsan|tsan_rpc] [ctest arguments, e.g. -R scheduler or -L unit]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
if [ "${1:-}" = --preset ]; then
  preset=${2:?tests/run.sh: --preset needs a name of CMakePresets.json}
  shift 2
fi
needs=(--tests)
[ "$preset" = clang ] && needs+=(--clang)
options=()
if [ "$preset" = release ]; then
  # Kernels are compiled also where no GPU is: then only for one kind of device, which takes half the time.
  cuda=$(deploy/sees_gpu.sh --toolkit) && archs=-USY_CUDA_ARCHS || archs=-DSY_CUDA_ARCHS=90a-real
  needs+=(--cuda="$cuda")
  options=(-DSY_CUDA=AUTO -DSY_CUDA_AT_MOST="$cuda" "$archs")
fi
# Status 3: all but the CUDA toolkit, and said so.
deploy/install-deps.sh "${needs[@]}" || [ $? -eq 3 ]
deploy/build.sh -p "$preset" "${options[@]}" all
log=build/$preset/ctest.log
set +e
ctest --test-dir "build/$preset" --parallel 2 --output-on-failure --no-tests=error -LE slow "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
set -e
sed -n 's/^-- CUDA: built for \([0-9a-z_ -]*\) by .*/CUDA: compiled for \1/p; s/^-- CUDA: not built: /CUDA: not compiled: /p' "build/$preset/configure.log"
# One plain line at the end, for machines that read it.
total=$(grep -oE 'tests failed out of [0-9]+' "$log" | grep -oE '[0-9]+$' || echo 0)
failed=$(grep -oE '[0-9]+ tests failed out of' "$log" | grep -oE '^[0-9]+' || echo 0)
skipped=$(grep -cE '\*\*\*Skipped' "$log" || true)
[ "$preset" = release ] || printf '%s: ' "$preset"
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$status"
