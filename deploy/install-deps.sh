#!/usr/bin/env bash
# Installs what building and testing Switchyard needs, from the distribution's packages.  Safe to run again: it asks for
# nothing that is there.  Debian 12; Ubuntu 24.04 is meant to work, untested.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config git xz-utils
  libabsl-dev libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libssl-dev zlib1g-dev libc-ares-dev libre2-dev
  prometheus-cpp-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libdnnl-dev libgloo-dev libcli11-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

run=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps.sh: not root and no sudo; install: ${missing[*]}" >&2; exit 1; }
  run=(sudo)
fi
echo "installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run[@]}" apt-get update && "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "install-deps.sh: apt-get failed" >&2
  exit 1
fi
