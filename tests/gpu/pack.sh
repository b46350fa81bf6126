#!/usr/bin/env bash
# Builds what tests a GPU (gpu_tests, gpu_bench, gpu_probe) and packs it for a machine where only a driver, CUDA's libraries and a glibc no
# older than here need be.  The pack and the tracked tree, which has scripts and fixtures, are all that travels: prints both sizes, and fails
# when they are together over the limit.
# usage: tests/gpu/pack.sh [--emulated] [--serve] [--built=DIR] [--to=FILE] [-DNAME=VALUE for cmake]...      or: tests/gpu/pack.sh --tree
#   --emulated    the same programs over the emulation of CUDA (rehearse.sh)
#   --serve       instead of the tests' programs the server, its worker and the command line (serve.sh), as build/gpu/serve.tar.xz: it travels
#                 without the other pack
#   --built=DIR   nothing is built: what this build has is packed
#   --to=FILE     default build/gpu/pack.tar.xz
#   -D...         for example -DSY_CUDA_ARCHS=80-real; 90a-real if not given
#   --tree        packs nothing: only looks whether the tracked tree leaves room for a pack
set -euo pipefail
cd "$(dirname "$0")/../.."
limit_kib=$((60 * 1024)) room_kib=$((8 * 1024))
kind= built= to= serve=0 flags=(-DSY_CUDA=ON -DSY_CUDA_ARCHS=90a-real)
tree_kib=$(git ls-files -z | xargs -0 stat -c %s | awk '{ bytes += $1 } END { print int(bytes / 1024) }')
# fits PACK_KIB: says how much travels, and whether it may.
fits() {
  echo "the pack: $1 KiB; the tracked tree: $tree_kib KiB; together $(($1 + tree_kib)) of $limit_kib KiB"
  [ $(($1 + tree_kib)) -le $limit_kib ] || { echo "pack.sh: too large to travel" >&2; exit 1; }
}
for argument in "$@"; do
  case "$argument" in
    --emulated) kind=_emulated flags=() ;;
    --serve) serve=1 ;;
    --built=*) built=${argument#*=} ;;
    --to=*) to=${argument#*=} ;;
    --tree) fits $room_kib; exit ;;
    -D*) flags+=("$argument") ;;
    *) echo "pack.sh: cannot take $argument" >&2; exit 2 ;;
  esac
done
[ $serve = 0 ] || [ -z "$kind" ] || { echo "pack.sh: --serve packs for a device, --emulated does not" >&2; exit 2; }
programs=(gpu_tests gpu_bench gpu_probe)
[ $serve = 0 ] || programs=(switchyard-server switchyard-worker switchyard)
: "${to:=build/gpu/$([ $serve = 1 ] && echo serve || echo pack).tar.xz}"
if [ -z "$built" ]; then
  built=build/release
  deploy/build.sh "${flags[@]}" "${programs[@]/%/$kind}"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pack=$work/pack
mkdir -p "$pack/bin" "$pack/lib" "$(dirname "$to")"

for program in "${programs[@]}"; do
  strip -o "$pack/bin/$program" "$built/bin/$program$kind"
  ldd "$built/bin/$program$kind"
done >"$work/ldd"
missing=$(awk '/=> not found/ { print $1 }' "$work/ldd" | sort -u | xargs)
[ -z "$missing" ] || { echo "pack.sh: libraries that ldd does not find: $missing" >&2; exit 1; }
awk '$3 ~ /^\// { print $1, $3 }' "$work/ldd" | sort -u >"$work/libraries"
# Of the libraries: all but the C library's and CUDA's, which are the machine's own.
while read -r name path; do
  case "$name" in
    libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | ld-linux*) ;;
    libcuda.so* | libcudart.so* | libnvrtc.so* | libnvJitLink.so*) echo "$name" >&3 ;;
    *) strip -o "$pack/lib/$name" "$(realpath "$path")" ;;
  esac
done <"$work/libraries" 3>"$pack/cuda_libraries.txt"
# Those that programs open when a device is (workers/tensor/cuda/late_library.h).
[ -n "$kind" ] || cat "$built/late_libraries.txt" >>"$pack/cuda_libraries.txt" || { echo "pack.sh: configure $built anew" >&2; exit 1; }

if [ $serve = 0 ]; then
  # "source suite.test" a line, in the order in which run.sh takes them: single ops first, whole models and processes last.
  "$built/bin/gpu_tests$kind" --gtest_list_tests --gtest_output=json:"$work/tests.json" >"$work/list" || { cat "$work/list" >&2; exit 1; }
  sed 's|\\/|/|g' "$work/tests.json" | awk -F'"' -v root="$PWD/" '
    $2 == "name" { before = name; name = $4 }
    $2 == "testsuite" { suite = name }
    $2 == "file" { file = $4; sub(root, "", file); sub(/^(\.\.\/)+/, "", file); if (name !~ /DISABLED_/ && suite !~ /DISABLED_/) print file, suite "." name }' >"$work/tests"
  for room in workers/ops/cuda workers/ops workers/tensor workers/moe workers/model . ; do
    grep "^tests/$room" "$work/tests" || true
  done | awk '!seen[$0]++' >"$pack/tests.txt"
  [ -z "$kind" ] || sed -i '/^tests\/gpu\/ranks_process_test/d' "$pack/tests.txt"  # the emulated NCCL joins no processes
  [ -s "$pack/tests.txt" ] || { echo "pack.sh: $built/bin/gpu_tests$kind lists no test" >&2; exit 1; }
  tests/gpu/cuda_changes.sh --list >"$pack/cuda_sources.txt"
fi
{
  echo "commit $(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo ' with changes')"
  [ -n "$kind" ] && echo "the emulation" || sed -n 's/^-- CUDA: built \(.*\) in .*/\1/p' "$built/configure.log" 2>/dev/null || true
} >"$pack/made_from.txt"
# The dictionary is as large as all programs together: what they share is in the pack once.
tar -C "$pack" --sort=name --owner=0 --group=0 -c . | xz -T1 --lzma2=preset=6,dict=64MiB >"$to"

echo "$to: $([ $serve = 1 ] && echo programs || echo "$(wc -l <"$pack/tests.txt") tests") of commit $(git rev-parse --short HEAD)"
fits $(($(stat -c %s "$to") / 1024))
