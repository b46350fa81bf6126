#!/usr/bin/env bash
# Puts a complete CUDA toolkit (nvcc, runtime, cuBLAS, NCCL) together from the wheels pinned in requirements.txt, laid out as
# /usr/local/cuda is.  Needs python3 with pip, no root; x86_64; 1.2 GB there, and as much again while it works.  No driver is needed or made.
# The folder appears whole or not at all, and nothing is done where it is.
# usage: make_toolkit.sh [DIR]     DIR: $SY_CUDA_DIR, or ~/.cache/switchyard/cuda-13.0-HASH OF requirements.txt
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
hash=$(sha256sum "$here/requirements.txt")
dir=${1:-${SY_CUDA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/switchyard/cuda-13.0-${hash:0:8}}}
[ -x "$dir/bin/nvcc" ] && [ -e "$dir/lib64/libnccl.so.2" ] && exit 0
[ ! -e "$dir" ] || { echo "make_toolkit.sh: $dir is there, but is no CUDA toolkit; remove it or set SY_CUDA_DIR" >&2; exit 1; }

pip=()
for python in python3 /usr/bin/python3; do
  "$python" -m pip --version >/dev/null 2>&1 && { pip=("$python" -m pip); break; }
done
[ ${#pip[@]} -gt 0 ] || { echo "make_toolkit.sh: no python3 with pip (package python3-pip)" >&2; exit 1; }

# In the same parent folder, so that the last step is a rename.
mkdir -p "$(dirname "$dir")"
work=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
echo "making a CUDA toolkit in $dir (downloads 0.9 GB)"
if ! TMPDIR="$work/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1 "${pip[@]}" install --quiet --no-cache-dir \
  --no-deps --only-binary=:all: --no-compile --require-hashes --requirement "$here/requirements.txt" --target "$work/wheels" >"$work/log" 2>&1; then
  # Reports a broken connection rather than the errors that follow from it.
  why=$(grep -m 1 'connection broken' "$work/log" || tail -n 1 "$work/log")
  echo "make_toolkit.sh: no CUDA toolkit, so the build will be for CPUs; pip: ${why:0:300}" >&2
  exit 1
fi

tree=$work/wheels/nvidia/cu13
cp -al "$work/wheels/nvidia/nccl/include/." "$tree/include/"
cp -al "$work/wheels/nvidia/nccl/lib/." "$tree/lib/"
ln -s lib "$tree/lib64"  # where nvcc looks
for library in "$tree"/lib/lib*.so.*; do
  ln -sf "$(basename "$library")" "${library%%.so.*}.so"  # what -lNAME looks for
done
cp "$here/requirements.txt" "$tree/"
chmod 755 "$tree"
# Another run may have made it meanwhile.
mv -T "$tree" "$dir" 2>/dev/null || [ -x "$dir/bin/nvcc" ] || { echo "make_toolkit.sh: $tree could not be moved to $dir" >&2; exit 1; }
