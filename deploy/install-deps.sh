#!/usr/bin/env bash
# Installs what building Switchyard needs, from the distribution's packages; with --tests also what only its tests need,
# with --clang also the compiler of that preset, with --fuzz the compiler and libFuzzer of tests/fuzz, with --cuda a CUDA toolkit
# where no complete one is (deploy/cuda/make_toolkit.sh: from pinned packages, into the user's cache; no driver), with --cuda=12
# one that drivers below 580 run.  Exit status 3: all is there but for that toolkit; without it the build is for CPUs.
# Safe to run again: it asks for nothing that is there.  Debian 12; Ubuntu 24.04 is meant to work, untested.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config git xz-utils
  libabsl-dev libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libssl-dev zlib1g-dev libc-ares-dev libre2-dev
  libboost-dev prometheus-cpp-dev nlohmann-json3-dev libpcre2-dev libsqlite3-dev libutf8proc-dev liburing-dev libyaml-cpp-dev libedit-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
deploy=$(cd "$(dirname "$0")" && pwd)
tests=0 want_cuda=0 cuda=13
for arg in "$@"; do
  case "$arg" in
    --tests) tests=1 ;;
    --clang) packages+=(clang-19) ;;
    --fuzz) packages+=(clang-19 libclang-rt-19-dev) ;;
    --cuda|--cuda=12|--cuda=13) want_cuda=1; [ "$arg" != --cuda=12 ] || cuda=12 ;;
    *) echo "install-deps.sh: unknown argument $arg" >&2; exit 2 ;;
  esac
done

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }
missing=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
# What the tests can do without: clang-format for a part of check_format; clang-tidy, ip, systemd-analyze, zsh, venv, promtool and prometheus for one or two tests each.
extras=() want_prometheus=0
if [ $tests -eq 1 ]; then
  for package in clang-format-14 clang-tidy-19 iproute2 systemd zsh python3-venv; do installed "$package" || extras+=("$package"); done
  command -v promtool >/dev/null && command -v prometheus >/dev/null || want_prometheus=1
fi
# cmake itself may be among the missing.
toolkit_there() { command -v cmake >/dev/null && cmake -DSY_CUDA_AT_MOST="$cuda" -P "$deploy/cmake/SyFindCuda.cmake" >/dev/null 2>&1; }
has_pip() { python3 -m pip --version >/dev/null 2>&1 || /usr/bin/python3 -m pip --version >/dev/null 2>&1; }
if [ $want_cuda -eq 1 ]; then
  toolkit_there && want_cuda=0
  [ $want_cuda -eq 0 ] || has_pip || extras+=(python3-pip)
fi
# Runs last, even after an error.
make_toolkit() {
  [ $want_cuda -eq 0 ] || toolkit_there || "$deploy/cuda/make_toolkit.sh" "$cuda" || exit 3
  exit 0
}
[ ${#missing[@]} -eq 0 ] && [ ${#extras[@]} -eq 0 ] && [ $want_prometheus -eq 0 ] && make_toolkit

run=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    [ ${#missing[@]} -eq 0 ] && { echo "install-deps.sh: not root and no sudo: not there: ${extras[*]} or promtool, so not all will be tested" >&2; make_toolkit; }
    echo "install-deps.sh: not root and no sudo; install: ${missing[*]}" >&2
    exit 1
  fi
  run=(sudo)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"  # apt downloads as a user of its own

quietly() { "$@" >>"$work/log" 2>&1; }

# Of the package prometheus only the two programs: its service would start here, and 20 packages come with it.
install_prometheus() {
  mkdir -m 777 "$work/deb" && cd "$work/deb" || return 1
  quietly apt-get download prometheus && quietly dpkg-deb -x prometheus_*.deb tree &&
    quietly "${run[@]}" install -D -m 755 -t /usr/local/bin tree/usr/bin/promtool tree/usr/bin/prometheus && quietly promtool --version
}

if [ ${#missing[@]} -gt 0 ]; then echo "installing ${#missing[@]} packages: ${missing[*]}"; fi
quietly "${run[@]}" apt-get update || { tail -n 20 "$work/log" >&2; echo "install-deps.sh: apt-get update failed" >&2; [ ${#missing[@]} -eq 0 ] || exit 1; }
if [ ${#missing[@]} -gt 0 ]; then
  if ! quietly "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; then
    tail -n 20 "$work/log" >&2
    echo "install-deps.sh: apt-get failed" >&2
    exit 1
  fi
fi
if [ ${#extras[@]} -gt 0 ]; then
  echo "installing: ${extras[*]}"
  for package in "${extras[@]}"; do
    quietly "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ||
      { tail -n 5 "$work/log" >&2; echo "install-deps.sh: without $package: what needs it is left out" >&2; }
  done
fi
if [ $want_prometheus -eq 1 ]; then
  echo "installing promtool and prometheus"
  # Not fatal: without them tests are skipped, with a message.
  (install_prometheus) || { tail -n 5 "$work/log" >&2; echo "install-deps.sh: no promtool or prometheus; tests of metrics, alerts and boards will be skipped" >&2; }
fi
make_toolkit
