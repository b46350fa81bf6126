#!/usr/bin/env bash
# Installs, builds and runs every test but those with the label slow.  usage: tests/run.sh [--preset release|clang|asan|tsan|tsan_rpc] [ctest arguments, e.g. -R scheduler or -L unit]
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
log=build/$preset/ctest.log outputs=build/$preset/Testing/Temporary/LastTest.log
rm -f "$outputs"
set +e
ctest --test-dir "build/$preset" --parallel 2 --output-on-failure --no-tests=error -LE slow "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
set -e
sed -n 's/^-- CUDA: built for \([0-9a-z_ -]*\) by .*/CUDA: compiled for \1/p; s/^-- CUDA: not built: /CUDA: not compiled: /p' "build/$preset/configure.log"
# ctest takes a program as skipped by what it prints (SKIP_REGULAR_EXPRESSION), also if one of its tests failed, and as passed whatever of it skipped
# itself (GTEST_SKIP): both are only in its log of all outputs.  Prints such failures, then skipped tests by program and reason.
within_programs() {
  awk '
    /^[0-9]+\/[0-9]+ Testing: / { program = substr($0, index($0, ": ") + 2); failed = ""; own = 0 }
    reads { reason = $0; reads = 0 }
    /: Skipped$/ { reads = 1 }
    /^\[  FAILED  \] .* \([0-9]+ ms\)$/ { failed = failed " " $4 }
    /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { why[own] = reason; name[own++] = $4 }
    /^Skip regular expression found/ { if (failed != "") print "FAILED in a program that counts as skipped: " program ":" failed; own = 0 }
    /^"/ && /" time elapsed: / {
      for (i = 0; i < own; ++i) {
        key = program ": " why[i]
        if (!(key in count)) keys[num_keys++] = key
        if (++count[key] <= 3) names[key] = names[key] (count[key] > 1 ? ", " : "") name[i]
      }
      total += own; own = 0
    }
    END {
      print "skipped within programs that passed or failed: " total + 0 (total ? " tests" : "")
      for (i = 0; i < num_keys; ++i) {
        more = count[keys[i]] - 3
        print "  " keys[i] ": " names[keys[i]] (more > 0 ? " and " more " more" : "")
      }
    }' "$outputs"
}
sed -n 's/^\t *[0-9]* - \(.*\) (Skipped)$/skipped: \1/p' "$log"
masked=0
if [ -f "$outputs" ]; then
  within=$(within_programs)
  echo "$within"
  masked=$(grep -c '^FAILED in' <<<"$within" || true)
  [ "$masked" = 0 ] || status=1
fi
# One plain line at the end, for machines that read it: of programs, as ctest counts.
total=$(grep -oE 'tests failed out of [0-9]+' "$log" | grep -oE '[0-9]+$' || echo 0)
failed=$(($(grep -oE '[0-9]+ tests failed out of' "$log" | grep -oE '^[0-9]+' || echo 0) + masked))
skipped=$(($(grep -cE '\*\*\*Skipped' "$log" || true) - masked))
[ "$preset" = release ] || printf '%s: ' "$preset"
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$status"
