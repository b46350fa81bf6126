#!/usr/bin/env bash
# check_sizes.sh counts the lines of functions wherever they stand, and those of tables not.  usage: check_sizes_test.sh ROOT
set -euo pipefail
check=$1/deploy/ci/check_sizes.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
git init -q .
mkdir server

# lines COUNT TEXT: TEXT so often, each on a line of its own.
lines() { yes "$2" 2>/dev/null | head -n "$1" || true; }
# expect FILE TEXT: of what comes in as FILE, the check says TEXT alone, and fails; without a TEXT it says nothing and passes.
expect() {
  local said status=0 want=${2:+$1:$2}
  cat >"$1"
  said=$("$check" "$work") || status=$?
  [ "$status" = $((${#want} > 0)) ] && [ "$said" = "$want" ] || { echo "expected: ${want:-nothing}; status $status, said: $said"; cat "$1"; exit 1; }
  rm "$1"
}
# body INDENT COUNT: what follows a function's head, of COUNT lines.
body() {
  lines "$2" "$1  Work();"
  echo "$1}"
}

for count in 58 59; do
  over() { [ $count = 58 ] || echo "$1: 61 lines, limit 60: $2"; }
  { echo 'int F() {'; body '' $count; } | expect server/a.cc "$(over 1 'int F() {')"
  { printf 'class A final : public B {\n public:\n  int F() const {\n'; body '  ' $count; echo '};'; } | expect server/a.h "$(over 3 'int F() const {')"
  { printf 'struct alignas(64) A {\n  struct B {\n    ~B() {\n'; body '    ' $count; printf '  };\n};\n'; } | expect server/a.h "$(over 3 '~B() {')"
  # The second function of a class that derives from two, with a head of several lines.
  { printf 'class A : public B,\n          public C {\n public:\n  int G() { return 1; }\n\n  explicit A(int x,\n             int y)\n      : x_(x),\n        y_(y) {\n'
    body '  ' $((count - 3)); echo '};'; } | expect server/a.h "$(over 6 'explicit A(int x,')"
  { printf 'template <class T>\nclass A {\n  enum class Kind {\n    kOne,\n  };\n  [[nodiscard]] T F() {  // says what\n'; body '  ' $count; echo '};'; } |
    expect server/a.h "$(over 6 '[[nodiscard]] T F() {')"
done
{ echo '__global__ void K() {'; body '' 118; } | expect server/k.cu
{ echo '__global__ void K() {'; body '' 119; } | expect server/k.cu '1: 121 lines, limit 120: __global__ void K() {'
# Data, and what looks like the end of a function and is none.
{ echo 'constexpr int kTable[] = {'; lines 100 '    1,'; echo '};'; } | expect server/a.cc
{ printf 'struct A {\n  static constexpr int kTable[] = {\n'; lines 100 '      1,'; printf '  };\n};\n'; } | expect server/a.h
{ printf 'int F() {\n  static const int table[] = {\n'; lines 100 '      1,'; echo '  };'; body '' 56; } | expect server/a.cc
{ printf 'int F() {\n  static const int table[] = {\n'; lines 100 '      1,'; echo '  };'; body '' 57; } | expect server/a.cc '1: 61 lines, limit 60: int F() {'
{ printf 'int F() {\n  Read(R"json({\n}\n)json");\n'; body '' 56; } | expect server/a.cc '1: 61 lines, limit 60: int F() {'
{ printf 'struct A {\n'; lines 100 '  int F() { return 1; }'; echo '};'; } | expect server/a.h
# Files and folders.
lines 500 'int x;' | expect server/a.cc
lines 501 'int x;' | expect server/a.cc ' 501 lines, limit 500'
touch server/{a..y}.h
expect server/z.sh </dev/null
touch server/z.h
[ "$("$check" "$work")" = "server: 26 sources and headers, limit 25" ] || { echo "26 headers in a folder passed"; exit 1; }
echo "check_sizes.sh counts them"
