#!/usr/bin/env bash
# Configures and builds a preset's targets, with a line of progress.
# usage: deploy/build.sh [-p preset] [-DNAME=VALUE | -UNAME for cmake]... [target...]
set -euo pipefail
cd "$(dirname "$0")/.."

# Clones share a ccache, so that none compiles what another one has compiled.
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros

preset=release
if [ "${1:-}" = "-p" ]; then
  preset=$2
  shift 2
fi
options=()
while [[ "${1:-}" = -[DU]* ]]; do
  options+=("$1")
  shift
done
targets=("${@:-all}")
build="build/$preset"

mkdir -p "$build"
if ! cmake --preset "$preset" "${options[@]}" >"$build/configure.log" 2>&1; then
  tail -n 25 "$build/configure.log" >&2
  exit 1
fi
sed -n '/SY_CUDA=OFF$/!s/^-- \(CUDA: \)/\1/p' "$build/configure.log"
# On a terminal ninja overwrites one line; in a log a line for every fiftieth step is enough.
if [ -t 1 ]; then
  cmake --build "$build" --target "${targets[@]}"
else
  export NINJA_STATUS='[%f/%t %es] '
  set +e
  cmake --build "$build" --target "${targets[@]}" 2>&1 | tee "$build/build.log" | {
    steps=0
    while IFS= read -r line; do
      case "$line" in
        "["*) [ $((steps++ % 50)) -eq 0 ] && printf '%s\n' "$line" ;;
        *) printf '%s\n' "$line" ;;
      esac
    done
  }
  status=${PIPESTATUS[0]}
  exit "$status"
fi
