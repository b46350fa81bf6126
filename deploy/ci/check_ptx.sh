#!/usr/bin/env bash
# No kernel reads by the non-coherent path (ld.global.nc), and none touches global memory before griddepcontrol.wait.  A kernel may begin while the
# one before it on the stream still writes (LaunchConfig::dependent); PTX allows ld.global.nc only of what nobody writes as long as the
# kernel runs, and lets it move above the wait.  What makes nvcc emit one: a kernel's parameter that is __restrict__ and only read, or __ldg().
# A prefetch into L2 reads nothing that could be old.  usage: check_ptx.sh FILE.ptx...   Exit 1 with a line per breach, or without a kernel.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: check_ptx.sh FILE.ptx..." >&2; exit 2; }
awk '
  function breach(why) { printf "%s: %s: %s\n", FILENAME, name, why; bad = 1 }
  /^[^\/]*\.(entry|func) / {
    is_kernel = /\.entry /
    name = $0
    sub(/.*\.(entry|func) +(\([^)]*\) *)?/, "", name)
    sub(/\(.*/, "", name)
    waits = noncoherent = early = 0
  }
  name == "" { next }
  /^[ \t]*(@!?%p[0-9]+ )?griddepcontrol\.wait/ { waits = 1 }
  /^[ \t]*(@!?%p[0-9]+ )?(ld|ldu|st|atom|red|cp\.async|cp\.reduce)\./ && !/[ \t](ld|st|atom|red)\.([a-z]+\.)?(param|shared|local|const)/ {
    if (!waits && !early++ && is_kernel) breach("touches global memory before griddepcontrol.wait:" $0)
    if (/\.nc\./ && !noncoherent++) first = $0
  }
  !waits {  # adds what the called functions do, which precede their callers in the text
    for (f in touches) if ($0 ~ "[ \t,(]" f "[ \t,;]" && !early++ && is_kernel) breach("touches global memory before griddepcontrol.wait: calls " f)
    for (f in waits_itself) if ($0 ~ "[ \t,(]" f "[ \t,;]") waits = 1
  }
  /^}/ {
    if (noncoherent) breach(noncoherent " reads by the non-coherent path, the first:" first)
    if (is_kernel && !waits) breach("never waits for the kernel before it")
    if (!is_kernel && early) touches[name]
    if (!is_kernel && waits) waits_itself[name]
    total += is_kernel
    name = ""
  }
  END {
    if (!total) { print "no kernel in these files: are they PTX?"; exit 1 }
    if (!bad) printf "%d kernels wait before they touch global memory, none reads it by the non-coherent path\n", total
    exit bad
  }
' "$@" | c++filt
