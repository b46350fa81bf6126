#!/usr/bin/env bash
# Limits of sizes: no folder of ours with more than 25 sources and headers, no source file above 500 lines, no function above 60, no kernel (of a _cpu.cc, _kernels.h or .cu file) above 120.
# A table of data counts as data.  Functions, also those inside classes, are found by their indentation after clang-format, which
# check_format.sh keeps: a declaration begins where its scope indents to, and a closing brace is below it.  usage: check_sizes.sh [root]
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
    # scope: how far what the innermost namespace or class declares is indented.  start, head: where a declaration began, and its text so far.
    # body: a function is open.  table: where a table in it began, at this column; data: lines of its tables so far.
    FNR == 1 { scope = start = body = table = 0; raw = macro = ""; limit = FILENAME ~ /(_cpu\.cc|_kernels?\.h|\.cuh?)$/ ? 120 : 60 }
    raw != "" { if (index($0, raw)) raw = ""; next }
    { line = $0 }
    match(line, /R"[A-Za-z_]*\(/) { raw = ")" substr(line, RSTART + 2, RLENGTH - 3) "\""; if (index(line, raw)) raw = "" }
    macro || /^ *#/ { macro = /\\$/; next }
    { sub(/ +\/\/.*$/, "", line); sub(/^\/\/.*$/, "", line) }
    line == "" || line ~ /^ *(public|private|protected|default):$/ { next }
    { match(line, /^ */); indent = RLENGTH; text = substr(line, indent + 1) }
    table && indent > column { next }
    table { data += FNR - table - 1; table = 0 }
    body && text ~ /= \{$/ { table = FNR; column = indent }
    text ~ /^\}/ && indent == scope && body {
      lines = FNR - start + 1 - data
      if (lines > limit) { printf "%s:%d: %d lines, limit %d: %s\n", FILENAME, start, lines, limit, name; bad = 1 }
      start = body = 0
      next
    }
    { while (indent < scope) { scope -= 2; start = body = 0 } }
    indent == scope && text ~ /^[A-Za-z_~\[]/ { start = FNR; name = text; head = ""; body = data = 0 }
    !start || body { next }
    { head = head (head == "" ? "" : " ") text }
    text ~ /[;}]$/ { start = 0; next }
    text !~ /\{$/ { next }
    head ~ /^(typedef )?(struct|class|union) / && head !~ /\)( const| noexcept| override)* \{$/ { scope += 2; start = 0; next }
    head ~ /^(inline )?namespace|^(typedef )?enum |^extern "C" \{$|= \{$|[^ ]\{$/ { start = 0; next }
    { body = 1 }
    END { exit bad }' || bad=1
exit $bad
