#!/usr/bin/env bash
# One file, one noun, one room: no folder of ours with more than 25 sources and headers, no source file above 500 lines, no function above 60, no kernel (of a _cpu.cc, _kernels.h or .cu file) above 120.
# A table of data counts as data.  Functions are found by their shape after clang-format, which check_format.sh keeps: a declaration
# in column 0, a closing brace in column 0.  usage: check_sizes.sh [root]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
bad=0
git ls-files --cached --others --exclude-standard {proto,server,scheduler,workers,clients}/'*.'{h,cc,cu,cuh} |
  while read -r file; do [ -f "$file" ] && dirname "$file"; done | sort | uniq -c |
  awk '$1 > 25 { printf "%s: %d sources and headers, limit 25\n", $2, $1; bad = 1 } END { exit bad }' || bad=1
git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' '*.proto' '*.py' '*.sh' '*CMakeLists.txt' '*.cmake' |
  while read -r file; do [ -f "$file" ] && wc -l "$file"; done |
  awk '$1 > 500 { printf "%s: %d lines, limit 500\n", $2, $1; bad = 1 } END { exit bad }' || bad=1
git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | while read -r file; do [ -f "$file" ] && echo "$file"; done |
  xargs awk '
    FNR == 1 { start = 0; limit = FILENAME ~ /(_cpu\.cc|_kernels?\.h|\.cuh?)$/ ? 120 : 60 }
    /^[A-Za-z_]/ && !/;$/ { start = FNR; name = $0 }
    /^(namespace|extern)/ || /= \{$/ { start = 0 }
    /^(struct|class|enum|union)[^()]*\{$/ { start = 0 }
    /^\}/ {
      if (start && FNR - start + 1 > limit) { printf "%s:%d: %d lines, limit %d: %s\n", FILENAME, start, FNR - start + 1, limit, name; bad = 1 }
      start = 0
    }
    END { exit bad }' || bad=1
exit $bad
