#!/usr/bin/env bash
# Builds a library of the distribution from its source package, in the version that is installed, with flags of our own: the
# sanitizers see only code that was compiled for them.  Needs no root: apt gets lists and sources of its own, in DIR.
# Does nothing if DIR holds that build already.
# usage: build_instrumented.sh BINARY_PACKAGE DIR CXX CXXFLAGS [cmake argument ...]      the result is installed in DIR/prefix
set -euo pipefail
package=$1 dir=$2 cxx=$3 flags=$4
shift 4

fail() {
  echo "build_instrumented.sh: $package: $1" >&2
  [ -f "$dir/log" ] && tail -n 15 "$dir/log" >&2
  exit 1
}
what=$(dpkg-query -W -f='${source:Package}=${source:Version}' "$package" 2>/dev/null) || fail "the package is not installed (deploy/install-deps.sh)"
key="$what $cxx $flags $*"
[ -f "$dir/done" ] && [ "$(cat "$dir/done")" = "$key" ] && exit 0
command -v dpkg-source >/dev/null || fail "dpkg-source is not installed (package dpkg-dev)"

rm -rf "$dir"
mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/apt/parts" "$dir/source"
exec 3>&2 >"$dir/log" 2>&1

# The sources of the distribution itself, for source packages.
for list in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
  [ -f "$list" ] && sed -E 's/^Types:.*/Types: deb-src/' "$list" >"$dir/apt/parts/$(basename "$list")"
done
[ -f /etc/apt/sources.list ] && sed -nE 's/^deb(-src)? /deb-src /p' /etc/apt/sources.list | sort -u >"$dir/apt/parts/old.list"
cat >"$dir/apt/apt.conf" <<EOF
Dir::State::Lists "$dir/apt/lists";
Dir::Cache "$dir/apt/cache";
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$dir/apt/parts";
APT::Sandbox::User "";
Acquire::Retries "3";
EOF
export APT_CONFIG="$dir/apt/apt.conf"
apt-get update || fail "apt-get update for source packages failed" 2>&3
cd "$dir/source"
apt-get source --only-source "$what" || fail "no source package $what: is the machine off line, or the package older than the archive (apt-get upgrade)?" 2>&3
tree=$(find "$dir/source" -mindepth 1 -maxdepth 1 -type d)
cmake -G Ninja -S "$tree" -B "$dir/build" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_INSTALL_PREFIX="$dir/prefix" -DBUILD_TESTING=OFF "$@" || fail "its cmake failed" 2>&3
cmake --build "$dir/build" --target install || fail "its build failed" 2>&3
rm -rf "$dir/apt" "$dir/build"
echo "$key" >"$dir/done"
