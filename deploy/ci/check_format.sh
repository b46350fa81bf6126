#!/usr/bin/env bash
# clang-format 14 leaves every file as it is (where it is installed), and what needs no tool: no tabs or trailing blanks, at most
# 140 columns, a final newline, #pragma once in headers.  To fix: clang-format-14 -i FILES.
# usage: check_format.sh [root]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
bad=0
while read -r file; do
  [ -s "$file" ] || continue
  awk -v file="$file" '
    /\t/ { printf "%s:%d: a tab\n", file, FNR; bad = 1 }
    /[ \t]+$/ { printf "%s:%d: trailing blanks\n", file, FNR; bad = 1 }
    length($0) > 140 && !/R"|https?:/ { printf "%s:%d: %d columns, limit 140\n", file, FNR, length($0); bad = 1 }
    END { exit bad }' "$file" || bad=1
  [ -z "$(tail -c 1 "$file")" ] || { echo "$file: no newline at its end"; bad=1; }
  case "$file" in *.h) grep -q '^#pragma once' "$file" || { echo "$file: no #pragma once"; bad=1; } ;; esac
done < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh')
if command -v clang-format-14 >/dev/null; then
  git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' |
    xargs clang-format-14 --dry-run --Werror --ferror-limit=1 2>&1 | { ! grep -E ': (warning|error):'; } || bad=1
else
  echo "clang-format-14 is not installed: its rules were not checked"
fi
exit $bad
