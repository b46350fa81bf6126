#!/usr/bin/env bash
# Builds the tests and benchmarks for GPUs and puts them, stripped, with what they need at run time into one folder that runs where only a
# driver, CUDA's libraries and a glibc no older than here are: run.sh, bin/, lib/ (Abseil and the like; the programs look there first),
# fixtures under their paths in the tree, and lists of what it was made from.
# usage: tests/gpu/pack.sh [DIR (build/gpu)] [-DNAME=VALUE for cmake]...     e.g. -DSY_CUDA_ARCHS=80-real; 90a-real if not given
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=build/gpu
if [[ "${1:-}" != -D* ]] && [ $# -gt 0 ]; then
  pack=$1
  shift
fi
limit_mib=60
fixtures=(tests/golden/ops tests/golden/models deploy/demo-model tests/bench/gpu tests/bench/report.py tests/gpu/libraries.sh)
build=build/gpu-build
export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=1

# DT_RPATH, not DT_RUNPATH: it also counts for what lib/ itself needs.
mkdir -p "$build"
cmake --preset release -B "$build" -DSY_CUDA=ON -DSY_CUDA_ARCHS=90a-real -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib" \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags "$@" >"$build/configure.log" 2>&1 || { tail -n 25 "$build/configure.log" >&2; exit 1; }
sed -n 's/^-- \(CUDA: \)/\1/p' "$build/configure.log"
cmake --build "$build" --target gpu_binaries >"$build/build.log" 2>&1 || { tail -n 40 "$build/build.log" >&2; exit 1; }

rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/lib"
while read -r file folder; do
  strip -o "$pack/bin/$(basename "$file")" "$file"
  echo "$(basename "$file") $folder"
done < <(grep . "$build/gpu_binaries.txt") >"$pack/binaries.txt"
# Of the libraries: all but the C library's and CUDA's, which are the machine's own.
while read -r file _; do ldd "$file"; done <"$build/gpu_binaries.txt" | awk '$3 ~ /^\// { print $1, $3 }' | sort -u >"$build/libraries.txt"
own='^(libc|libm|libdl|librt|libpthread|libresolv|ld-linux-x86-64)\.so'
cuda='^(libcuda|libcublas|libcublasLt|libcudart|libnccl|libnvrtc|libnvJitLink)\.so'
while read -r name path; do
  [[ "$name" =~ $own ]] && continue
  [[ "$name" =~ $cuda ]] && { echo "$name" >&3; continue; }
  strip -o "$pack/lib/$name" "$(realpath "$path")"
done <"$build/libraries.txt" 3>"$pack/cuda_libraries.txt"

for fixture in "${fixtures[@]}"; do
  git ls-files "$fixture" | while read -r file; do install -D -m 644 "$file" "$pack/$file"; done
done
cp tests/gpu/run.sh tests/gpu/libraries.sh "$pack/"
tests/gpu/cuda_changes.sh --list >"$pack/cuda_sources.txt"
{
  echo "commit $(git rev-parse HEAD)$([ -z "$(git status --porcelain)" ] || echo ' with changes')"
  sed -n 's/^-- CUDA: /toolkit /p' "$build/configure.log" | sed 's/ in .*//'
} >"$pack/made_from.txt"

mib=$(du -sm "$pack" | cut -f1)
echo "$pack: $(wc -l <"$pack/binaries.txt") programs, $mib MiB"
[ "$mib" -lt "$limit_mib" ] || { du -a "$pack" | sort -rn | head -n 12 >&2; echo "pack.sh: limit $limit_mib MiB" >&2; exit 1; }
