#!/usr/bin/env bash
# Installs, builds and runs every test.  usage: tests/run.sh [ctest arguments, e.g. -R scheduler or -L unit]
set -euo pipefail
cd "$(dirname "$0")/.."

deploy/install-deps.sh --tests
deploy/build.sh all
log=build/release/ctest.log
set +e
ctest --test-dir build/release --output-on-failure --no-tests=error -LE slow "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
set -e
# One plain line at the end, for machines that read it.
total=$(grep -oE 'tests failed out of [0-9]+' "$log" | grep -oE '[0-9]+$' || echo 0)
failed=$(grep -oE '[0-9]+ tests failed out of' "$log" | grep -oE '^[0-9]+' || echo 0)
skipped=$(grep -cE '\*\*\*Skipped' "$log" || true)
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$status"
