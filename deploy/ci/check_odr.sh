#!/usr/bin/env bash
# One name, one definition: C++ lets a linker take any of two, in silence.
# Sources: no two files define a type of one name in namespace switchyard (those in unnamed namespaces and in other classes aside).
# Objects, where a build is given: no two objects have an external symbol of one name and different types, that is one that speaks of a
# type which they read from different files; and what several of them define they all read from a file that names it.
# The generator must be Ninja, which knows the files that an object was made of.  usage: check_odr.sh [root] [bindir]
set -euo pipefail
root=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
build=${2:+$(dirname "$2")}
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

# Lines "TYPE FILE LINE".  clang-format leaves what a namespace has in column 0.
git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done | xargs awk '
  FNR == 1 { depth = 0 }
  /^(inline )?namespace( [A-Za-z_0-9:]+)? \{/ { sub(/^inline /, ""); space[++depth] = $2 == "{" ? "" : $2; next }
  /^\}+ *\/\/ *namespace/ && depth { --depth; next }
  { sub(/^template <[^>]*> /, "") }
  /^(struct|class|union|enum( class| struct)?) [^;()]*$/ || /^(struct|class|union|enum( class| struct)?) [^;()]*\{/ {
    name = $0
    sub(/^(struct|class|union|enum( class| struct)?) /, "", name)
    while (name ~ /^(alignas\([^)]*\)|\[\[[^]]*\]\]|[A-Z][A-Z_]+(\([^)]*\))?) /) sub(/^[^ ]+ /, "", name)
    if (!match(name, /^[A-Za-z_][A-Za-z_0-9:]*/) || substr(name, RLENGTH + 1) ~ /^</) next
    name = substr(name, 1, RLENGTH)
    sub(/:+$/, "", name)
    path = ""
    for (i = 1; i <= depth; ++i) { if (space[i] == "") next; path = path space[i] "::" }
    if (path ~ /^switchyard::/) print path name, FILENAME, FNR
  }' | sort -u >"$work/types"
awk '
  ($1 in at) && file[$1] != $2 { printf "%s: two types of one name: %s:%d and %s\n", $1, $2, $3, at[$1]; bad = 1 }
  { file[$1] = $2; at[$1] = $2 ":" $3 }
  END { exit bad }' "$work/types" || bad=1
[ -n "$build" ] || exit $bad

[ -f "$build/.ninja_deps" ] || { echo "check_odr.sh: $build was not built by Ninja: its objects were not checked"; exit $((bad ? 1 : 77)); }
# Lines "OBJECT FILE": what of ours, generated files among them, an object was made of.
ninja -C "$build" -t deps | awk -v root="$root/" -v build="$(cd "$build" && pwd)/" '
  /^[^ ]/ { object = /\.o: .*\(VALID\)$/ ? substr($1, 1, length($1) - 1) : ""; next }
  object == "" || $1 == "" { next }
  { file = $1 }
  file !~ /^\// { file = build file }
  { while (sub(/[^\/]+\/\.\.\//, "", file)) {} }
  index(file, build) == 1 { print object, file; next }
  index(file, root) == 1 { print object, substr(file, length(root) + 1) }' >"$work/reads"
cut -d' ' -f1 "$work/reads" | sort -u >"$work/objects"
[ -s "$work/objects" ] || { echo "check_odr.sh: $build has no objects (deploy/build.sh first)"; exit 1; }
cd "$build"
xargs nm -A -g -C <"$work/objects" 2>/dev/null | grep -F switchyard:: >"$work/demangled" || true
awk -v types="$work/types" -v reads="$work/reads" '
  BEGIN {
    while ((getline <types) > 0) { if (($1 in first) && first[$1] != $2) twice[$1] = 1; first[$1] = $2; defines[$2] = defines[$2] " " $1 }
    for (t in twice) any = 1
    if (!any) exit
    while ((getline <reads) > 0) if ($2 in defines) {
      n = split(defines[$2], names, " ")
      for (i = 1; i <= n; ++i) if (names[i] in twice) seen[$1 " " names[i]] = $2
    }
  }
  {
    object = substr($0, 1, index($0, ":") - 1)
    symbol = substr($0, length(object) + 2)
    sub(/^[0-9a-f ]* [A-Za-z] /, "", symbol)
    rest = symbol
    while (match(rest, /switchyard::[A-Za-z_0-9]+(::[A-Za-z_0-9]+)*/)) {
      name = substr(rest, RSTART, RLENGTH)
      rest = substr(rest, RSTART + RLENGTH)
      while (!(name in twice) && sub(/::[A-Za-z_0-9]+$/, "", name)) {}
      if (!(name in twice) || !((object " " name) in seen)) continue
      file = seen[object " " name]
      key = symbol SUBSEP name
      if (!(key in of)) { of[key] = file; by[key] = object }
      else if (of[key] != file && !(key in said)) {
        said[key] = bad = 1
        if (++lines[name] <= 3) printf "symbol %s: %s is that of %s in %s and that of %s in %s\n", symbol, name, of[key], by[key], file, object
      }
    }
  }
  END { exit bad }' "$work/demangled" || bad=1

# Lines "OBJECT SYMBOL" of what they define, mangled: N10switchyard4name… says where the names end.
{ xargs nm -A -P -g --defined-only <"$work/objects" 2>/dev/null || true; } |
  sed -nE 's/^([^:]+): (_Z(TV|TI|TS|TT|GV|Z)?N[KVrRO]*10switchyard[^ ]*) [A-Za-z] .*/\1 \2/p' >"$work/defined"
awk -v root="$root/" -v reads="$work/reads" '
  function last_name(symbol,  length_of, name) {
    sub(/^_Z(TV|TI|TS|TT|GV|Z)?N[KVrRO]*10switchyard/, "", symbol)
    while (match(symbol, /^[0-9]+/)) {
      length_of = substr(symbol, 1, RLENGTH) + 0
      name = substr(symbol, RLENGTH + 1, length_of)
      symbol = substr(symbol, RLENGTH + 1 + length_of)
      sub(/^B5cxx11/, "", symbol)
    }
    return name
  }
  function names(file, name,  path, line, words, n, i) {
    path = file ~ /^\// ? file : root file
    if (!(file in known)) {
      known[file] = 1
      while ((getline line <path) > 0) {
        gsub(/[^A-Za-z0-9_]+/, " ", line)
        n = split(line, words, " ")
        for (i = 1; i <= n; ++i) has[file " " words[i]] = 1
      }
      close(path)
    }
    return (file " " name) in has
  }
  BEGIN { while ((getline <reads) > 0) { read[$1 " " $2] = 1; files[$1] = files[$1] " " $2 } }
  { ++count[$2]; by[$2] = by[$2] " " $1 }
  END {
    for (symbol in count) if (count[symbol] > 1) {
      name = last_name(symbol)
      if (name == "" && match(symbol, /NS_[0-9]+/)) {  # an operator: the type that it is of
        name = substr(symbol, RSTART + RLENGTH, substr(symbol, RSTART + 3, RLENGTH - 3) + 0)
      }
      n = split(by[symbol], objects, " ")
      num_files = split(files[objects[1]], candidates, " ")
      found = 0
      farthest = 2
      for (f = 1; f <= num_files && !found; ++f) {
        if (!names(candidates[f], name)) continue
        for (o = 2; o <= n && (objects[o] " " candidates[f]) in read; ++o) {}
        found = o > n
        if (o > farthest) farthest = o
      }
      if (found) continue
      printf "symbol %s: defined in %s and in %s, and no file that all who define it read names %s\n", symbol, objects[1], objects[farthest], name
      bad = 1
    }
    exit bad
  }' "$work/defined" | c++filt | sort -u || bad=1
exit $bad
