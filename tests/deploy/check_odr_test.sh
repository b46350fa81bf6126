#!/usr/bin/env bash
# check_odr.sh finds what two objects take for one thing and is two, and nothing where it is one.
# usage: check_odr_test.sh ROOT CXX
set -euo pipefail
check=$1/deploy/ci/check_odr.sh cxx=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
git init -q .
mkdir -p a b build/bin
cat >build/build.ninja <<EOF
rule cxx
  command = $cxx -std=c++17 -I.. -MD -MF \$out.d -c \$in -o \$out
  deps = gcc
  depfile = \$out.d
build a.o: cxx ../a/a.cc
build b.o: cxx ../b/b.cc
EOF

# expect TEXT: the check of what lies there says TEXT, and fails; without a TEXT it says nothing and passes.
expect() {
  local said status=0
  ninja -C build >build/log || { cat build/log; exit 1; }
  said=$("$check" "$work" "$work/build/bin") || status=$?
  if [ -z "${1:-}" ]; then
    [ "$status" = 0 ] && [ -z "$said" ] && return
  else
    [ "$status" = 1 ] && grep -qF "$1" <<<"$said" && return
  fi
  echo "expected: ${1:-nothing}; status $status, said: $said"
  exit 1
}
# user FILE HEADER: a source that copies a Thing and takes the address of Same().
user() {
  local name
  name=$(basename "$1" .cc)
  cat >"$1" <<EOF
#include "$2"
namespace switchyard {
int (*same_$name)(int) = &Same;
void Drop_$name(Thing* thing) { delete thing; }
}  // namespace switchyard
EOF
}
# header FILE TYPE MEMBER
header() {
  cat >"$1" <<EOF
#pragma once
namespace switchyard {
struct $2;
struct $2 {
  $3 value;
  struct Inner {};
  ~$2() { value = 0; }
};
using Thing$(dirname "$1") = $2;
inline int Same(int x) { return x; }
}  // namespace switchyard
namespace {
struct Hidden {};
}  // namespace
EOF
}

header a/thing.h Thing int
user a/a.cc a/thing.h
user b/b.cc a/thing.h
expect
header b/thing.h Thing double
user b/b.cc b/thing.h
expect "switchyard::Thing: two types of one name: "
expect "symbol switchyard::Thing::~Thing(): switchyard::Thing is that of a/thing.h in a.o and that of b/thing.h in b.o"
# Of one name no more, but the function is.
header b/thing.h Other double
sed -i 's/Thing\*/Other*/' b/b.cc
expect "symbol switchyard::Same(int): defined in a.o and in b.o, and no file that all who define it read names Same"
sed -i 's/Same/SameOther/' b/thing.h b/b.cc
expect
echo "check_odr.sh finds what is two"
