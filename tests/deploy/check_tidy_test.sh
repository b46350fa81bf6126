#!/usr/bin/env bash
# check_tidy.sh finds what .clang-tidy says, in headers too, and nothing where nothing is.  usage: check_tidy_test.sh ROOT
set -euo pipefail
check=$1/deploy/ci/check_tidy.sh
command -v clang-tidy-19 >/dev/null || { echo "skipped: clang-tidy-19 is not installed; deploy/install-deps.sh --tests brings it"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1/.clang-tidy" "$work"
cd "$work"
git init -q .
mkdir -p scheduler/batching build/bin
echo "[{\"directory\": \"$work/build\", \"file\": \"$work/scheduler/batching/a.cc\", \"command\": \"c++ -std=c++20 -I$work -c $work/scheduler/batching/a.cc\"}]" >build/compile_commands.json

# expect TEXT: the check of a.h and a.cc says TEXT, and fails; without a TEXT it says nothing and passes.
expect() {
  local said status=0
  said=$("$check" "$work" "$work/build/bin") || status=$?
  [ "$status" = $((${#1} > 0)) ] && grep -qF -- "$1" <<<"$said" && { [ -n "$1" ] || [ -z "$said" ]; } && return
  echo "expected: ${1:-nothing}; status $status, said: $said"
  exit 1
}
# header PARAMETERS
header() {
  printf '#pragma once\n#include <memory>\n#include <utility>\nint Drop(std::unique_ptr<int> value);\ninline int Sum(%s) { return a; }\n' "$1" >scheduler/batching/a.h
}
header 'int a, int, int, int, int, int'
printf '#include "scheduler/batching/a.h"\nint Drop(std::unique_ptr<int> value) {\n  std::unique_ptr<int> other = std::move(value);\n  return *other;\n}\n' >scheduler/batching/a.cc
expect ''
header 'int a, int, int, int, int, int, int'
expect 'readability-function-size'
header 'int a'
sed -i 's/return \*other/return *other + *value/' scheduler/batching/a.cc
expect 'bugprone-use-after-move'
echo "check_tidy.sh finds them"
