#!/usr/bin/env bash
# One file, one noun: no source file above 500 lines.  usage: check_sizes.sh [root]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' '*.proto' '*.py' '*.sh' '*CMakeLists.txt' '*.cmake' |
  while read -r file; do [ -f "$file" ] && wc -l "$file"; done |
  awk '$1 > 500 { printf "%s: %d lines, limit 500\n", $2, $1; bad = 1 } END { exit bad }'
