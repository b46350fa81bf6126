#!/usr/bin/env bash
# clang-tidy 19 finds nothing (.clang-tidy says what it looks for) in the parts of scheduler/ that decide what is computed: five seconds a file,
# so not the whole tree.  Name files to have others checked.
# usage: check_tidy.sh [root] [bindir] [file of the tree that a build compiles ...]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
build=$(dirname "${2:-build/release/bin}")
shift $(($# < 2 ? $# : 2))
tidy=$(command -v clang-tidy-19) || { echo "skipped: clang-tidy-19 is not installed; deploy/install-deps.sh --tests brings it"; exit 77; }
[ -f "$build/compile_commands.json" ] || { echo "skipped: $build has no compile_commands.json; deploy/build.sh makes it"; exit 77; }
said=$(mktemp)
trap 'rm -f "$said"' EXIT
[ $# -gt 0 ] || mapfile -t files < <(git ls-files --cached --others --exclude-standard 'scheduler/batching/*.cc' 'scheduler/pipeline/*.cc' 'scheduler/jobs/*.cc')
printf '%s\n' "${@:-${files[@]}}" | xargs -P "$(nproc)" -n 1 "$tidy" -p "$build" --quiet >"$said" 2>&1 && exit 0
grep -v ' warnings\? generated\.$' "$said" || cat "$said"
exit 1
