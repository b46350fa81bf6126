#!/usr/bin/env bash
# Puts a complete CUDA toolkit (nvcc, runtime, cuBLAS, NCCL) together from the wheels pinned in requirements.txt (13) or requirements-12.txt, laid out
# as /usr/local/cuda is.  Needs python3 with pip, no root; x86_64; 1.2 GB there, and as much again while it works.  No driver is needed or made.
# 12 is for drivers that do not run CUDA 13 (below 580); its nvcc is a package of Debian, whose apt it needs, and nothing is installed.
# The folder appears whole or not at all, and nothing is done where it is.
# usage: make_toolkit.sh [12|13] [DIR]     DIR: $SY_CUDA_DIR, or ~/.cache/switchyard/cuda-VERSION-HASH OF THE REQUIREMENTS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
requirements=$here/requirements.txt version=13.0
case "${1:-}" in
  12) requirements=$here/requirements-12.txt version=12.4; shift ;;
  13) shift ;;
esac
hash=$(sha256sum "$requirements")
dir=${1:-${SY_CUDA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/switchyard/cuda-$version-${hash:0:8}}}
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
fail() { echo "make_toolkit.sh: no CUDA toolkit, so the build will be for CPUs; $1" >&2; exit 1; }

# nvcc of the package that the requirements name, into $work/deb: by apt, from Debian 13 (whatever the machine's release is), without root.
get_nvcc() {
  local package sum uri apt
  read -r _ package sum < <(grep '^#deb ' "$requirements")
  uri=$(apt-get indextargets --format '$(SITE) $(LABEL)' 2>/dev/null | sed -n 's/ Debian$//p' | head -n 1)
  [ -n "$uri" ] || { echo "nvcc of CUDA $version is a package of Debian, and apt knows no mirror of it (apt-get update?); install NVIDIA's CUDA 12.4 or newer" >&2; return 1; }
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/deb"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri trixie non-free" >"$work/apt/sources"
  apt=(apt-get -q -o "Dir::Etc::sourcelist=$work/apt/sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/apt/lists"
    -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User= -o Debug::NoLocking=1)
  "${apt[@]}" update && (cd "$work/apt" && "${apt[@]}" download "$package") || return 1
  echo "${sum#sha256:}  $(echo "$work/apt"/*.deb)" | sha256sum --check --quiet && dpkg-deb -x "$work/apt"/*.deb "$work/deb"
}

# The wheels' folders as one: their own layout is one folder for each.
make_tree_12() {
  local part nvcc=$work/deb/usr
  mkdir -p "$tree/bin" "$tree/include" "$tree/lib" "$tree/nvvm/bin"
  for part in cublas cuda_cccl cuda_nvcc cuda_runtime; do
    cp -al "$work/wheels/nvidia/$part/include/." "$tree/include/"
    [ ! -d "$work/wheels/nvidia/$part/lib" ] || cp -al "$work/wheels/nvidia/$part/lib/." "$tree/lib/"
  done
  cp -al "$work/wheels/nvidia/cuda_nvcc/nvvm/libdevice" "$tree/nvvm/"
  mv "$nvcc"/bin/{bin2c,cudafe++,fatbinary,nvlink,ptxas,cuobjdump,nvdisasm} "$nvcc"/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$tree/bin/"
  mv "$nvcc/lib/nvidia-cuda-toolkit/bin/cicc" "$tree/nvvm/bin/"
  cat >"$tree/bin/nvcc.profile" <<'EOF'
TOP              = $(_HERE_)/..
CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(CICC_PATH):$(_HERE_):
INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib"
EOF
  # Kernels that launch kernels are not for this toolkit: the library for them is newer than its linker, which wants one by that name.
  rm "$tree/lib/libcudadevrt.a"
  echo | cc -x c -c -o "$work/tmp/none.o" - && ar rc "$tree/lib/libcudadevrt.a" "$work/tmp/none.o"
}

echo "making a CUDA toolkit in $dir (downloads 0.9 GB)"
if [ "$version" = 12.4 ]; then
  get_nvcc >"$work/log" 2>&1 || { why=$(grep -v '^Get:\|^Hit:' "$work/log" | tail -n 1); fail "apt: ${why:0:300}"; }
fi
if ! TMPDIR="$work/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1 "${pip[@]}" install --quiet --no-cache-dir \
  --no-deps --only-binary=:all: --no-compile --require-hashes --requirement "$requirements" --target "$work/wheels" >"$work/log" 2>&1; then
  # A connection that broke says more than what follows from it.
  why=$(grep -m 1 'connection broken' "$work/log" || tail -n 1 "$work/log")
  fail "pip: ${why:0:300}"
fi

tree=$work/wheels/nvidia/cu13
[ "$version" != 12.4 ] || { tree=$work/cu12; make_tree_12; }
cp -al "$work/wheels/nvidia/nccl/include/." "$tree/include/"
cp -al "$work/wheels/nvidia/nccl/lib/." "$tree/lib/"
ln -s lib "$tree/lib64"  # where nvcc looks
for library in "$tree"/lib/lib*.so.*; do
  ln -sf "$(basename "$library")" "${library%%.so.*}.so"  # what -lNAME looks for
done
cp "$requirements" "$tree/"
chmod 755 "$tree"
# Another run may have made it meanwhile.
mv -T "$tree" "$dir" 2>/dev/null || [ -x "$dir/bin/nvcc" ] || { echo "make_toolkit.sh: $tree could not be moved to $dir" >&2; exit 1; }
