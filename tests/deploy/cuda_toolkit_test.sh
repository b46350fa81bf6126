#!/usr/bin/env bash
# What the build says and does where CUDA is not whole (deploy/cmake/SyCuda.cmake), and that deploy/cuda/make_toolkit.sh leaves a whole
# toolkit or nothing.  Toolkits here are made of empty files; nothing is compiled or downloaded.  usage: cuda_toolkit_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
fail() { echo "FAILED: $1"; sed 's/^/    /' "$work/out"; bad=1; }

mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES NONE)
include($source_dir/deploy/cmake/SyCuda.cmake)
sy_cuda_library(kernels SRCS none_cuda.cu)
if(TARGET kernels OR SY_CUDA_FOUND)
  message(FATAL_ERROR "CUDA is on")
endif()
EOF
# configure STATUS WORDS [cmake argument ...]: cmake ends with STATUS, and the one line that begins with CUDA: has WORDS.
configure() {
  local want=$1 words=$2 status=0 lines
  shift 2
  rm -rf "$work/build"
  cmake -S "$work/project" -B "$work/build" -DCMAKE_CXX_COMPILER=c++ "$@" >"$work/out" 2>&1 || status=$?
  [ "$status" = "$want" ] || fail "$*: cmake ended with $status, not $want"
  lines=$(tr -s ' \n' ' ' <"$work/out" | grep -o 'CUDA: ' | wc -l)  # CMake breaks the lines of errors
  [ "$lines" = 1 ] || fail "$*: $lines lines of CUDA, not 1"
  tr -s ' \n' ' ' <"$work/out" | grep -qF "CUDA: not built: $words" || fail "$*: does not say: $words"
}
# toolkit NAME FILE...: a folder with these files; nvcc does nothing, and fails.
toolkit() {
  local root=$work/$1 file
  shift
  for file in bin/nvcc "$@"; do
    mkdir -p "$(dirname "$root/$file")"
    printf '#!/bin/sh\necho "this is no nvcc" >&2\nexit 1\n' >"$root/$file"
  done
  chmod +x "$root/bin/nvcc"
  [ ! -e "$root/include/cuda_runtime_api.h" ] || echo "#define CUDART_VERSION  $version" >"$root/include/cuda_runtime_api.h"
}
runtime=(include/cuda_runtime_api.h lib64/libcudart_static.a)
nccl=(include/nccl.h lib64/libnccl.so.2)
version=12040
toolkit nvcc-only
toolkit no-cublas "${runtime[@]}" "${nccl[@]}"
toolkit refuses "${runtime[@]}" "${nccl[@]}" include/cublasLt.h lib64/libcublasLt.so.12
version=12030
toolkit old "${runtime[@]}" "${nccl[@]}" include/cublasLt.h lib64/libcublasLt.so.12
hint="(deploy/install-deps.sh --cuda makes a complete toolkit)"
for row in "0 AUTO" "1 ON"; do
  read -r status wish <<<"$row"
  # NCCL may be the system's.
  configure "$status" "the toolkit in $work/nvcc-only lacks the CUDA runtime, cuBLASLt" -DSY_CUDA="$wish" -DCUDAToolkit_ROOT="$work/nvcc-only"
  configure "$status" "the toolkit in $work/nvcc-only lacks the CUDA runtime, cuBLASLt" -DSY_CUDA="$wish" -DCMAKE_CUDA_COMPILER="$work/nvcc-only/bin/nvcc"
  configure "$status" "the toolkit in $work/no-cublas lacks cuBLASLt $hint" -DSY_CUDA="$wish" -DCUDAToolkit_ROOT="$work/no-cublas"
  configure "$status" "the toolkit in $work/old is 12.3, at least 12.4 is needed $hint" -DSY_CUDA="$wish" -DCUDAToolkit_ROOT="$work/old"
  configure "$status" "$work/refuses/bin/nvcc does not compile: this is no nvcc $hint" -DSY_CUDA="$wish" -DCUDAToolkit_ROOT="$work/refuses"
  configure "$status" "there is no nvcc in $work/nothing/bin $hint" -DSY_CUDA="$wish" -DCUDAToolkit_ROOT="$work/nothing"
done
configure 0 "SY_CUDA=OFF" -DSY_CUDA=OFF
version=13000
toolkit new "${runtime[@]}" "${nccl[@]}" include/cublasLt.h lib64/libcublasLt.so.13
configure 0 "the toolkit in $work/new is 13.0, SY_CUDA_AT_MOST is 12 $hint" -DSY_CUDA_AT_MOST=12 -DCUDAToolkit_ROOT="$work/new"

# A python3 whose pip brings empty wheels, or fails half-way.
mkdir "$work/bin"
cat >"$work/bin/python3" <<'EOF'
#!/usr/bin/env bash
[ "$3" = install ] || exit 0
files=(cu13/bin/nvcc cu13/include/cublasLt.h cu13/lib/libcublasLt.so.13)
while [ "$1" != --target ]; do
  case "$1" in *requirements-12.txt)
    files=(cublas/include/cublasLt.h cublas/lib/libcublasLt.so.12 cuda_cccl/include/cccl.h cuda_nvcc/include/crt/host_config.h
      cuda_nvcc/nvvm/libdevice/libdevice.10.bc cuda_runtime/include/cuda_runtime_api.h cuda_runtime/lib/libcudart_static.a cuda_runtime/lib/libcudadevrt.a) ;;
  esac
  shift
done
for file in "${files[@]}" nccl/include/nccl.h nccl/lib/libnccl.so.2; do
  mkdir -p "$(dirname "$2/nvidia/$file")"
  touch "$2/nvidia/$file"
  chmod +x "$2/nvidia/$file"
  [ -z "${FAKE_PIP_FAILS:-}" ] || { echo "no route to host" >&2; exit 1; }
done
EOF
chmod +x "$work/bin/python3"
make_toolkit() { PATH="$work/bin:$PATH" "$source_dir/deploy/cuda/make_toolkit.sh" "$work/cache/cuda" >"$work/out" 2>&1; }
FAKE_PIP_FAILS=1 make_toolkit && fail "make_toolkit.sh: a failed download is not told"
grep -q "no route to host" "$work/out" || fail "make_toolkit.sh: does not say what pip said"
[ -z "$(ls -A "$work/cache")" ] || { ls -lR "$work/cache" >"$work/out"; fail "make_toolkit.sh: leaves half a toolkit"; }
make_toolkit || fail "make_toolkit.sh failed"
for file in bin/nvcc include/nccl.h lib64/libnccl.so lib64/libcublasLt.so lib64/libcublasLt.so.13; do
  [ -e "$work/cache/cuda/$file" ] || { echo "no $file" >"$work/out"; fail "make_toolkit.sh: the toolkit is not whole"; }
done
[ "$(ls -A "$work/cache")" = cuda ] || { ls -A "$work/cache" >"$work/out"; fail "make_toolkit.sh: leaves more than the toolkit"; }
FAKE_PIP_FAILS=1 make_toolkit || fail "make_toolkit.sh: makes again what is there"
[ ! -s "$work/out" ] || fail "make_toolkit.sh: speaks where nothing is to do"

# For CUDA 12 nvcc is a package's: an apt-get that brings one, of the pinned name, with a dpkg-deb that lays it out.
cat >"$work/bin/apt-get" <<'EOF'
#!/usr/bin/env bash
case "$*" in
  indextargets*) printf 'http://security.invalid/ Debian-Security\nhttp://mirror.invalid/debian Debian\n' ;;
  *update*) grep -q 'http://mirror.invalid/debian trixie non-free' "$(sed 's/.*sourcelist=\([^ ]*\).*/\1/' <<<"$*")" ;;
  *"download nvidia-cuda-toolkit=12.4."*) echo "${FAKE_DEB:-}" >toolkit.deb ;;
  *) exit 1 ;;
esac
EOF
cat >"$work/bin/dpkg-deb" <<'EOF'
#!/usr/bin/env bash
nvcc=$3/usr/lib/nvidia-cuda-toolkit/bin
mkdir -p "$3/usr/bin" "$nvcc/crt"
touch "$3"/usr/bin/{bin2c,cudafe++,fatbinary,nvlink,ptxas,cuobjdump,nvdisasm} "$nvcc"/{nvcc,cicc}
chmod +x "$nvcc/nvcc"
EOF
chmod +x "$work"/bin/*
make_toolkit_12() { PATH="$work/bin:$PATH" "$source_dir/deploy/cuda/make_toolkit.sh" 12 "$work/cache12/cuda" >"$work/out" 2>&1; }
make_toolkit_12 && fail "make_toolkit.sh 12: takes a package with another hash"
grep -q 'no CUDA toolkit.*apt: ' "$work/out" || fail "make_toolkit.sh 12: does not say why"
[ -z "$(ls -A "$work/cache12")" ] || { ls -lR "$work/cache12" >"$work/out"; fail "make_toolkit.sh 12: leaves half a toolkit"; }
# The hash of what the played apt-get brings is in the requirements of a copy.
mkdir -p "$work/copy"
cp "$source_dir"/deploy/cuda/* "$work/copy/"
sed -i "/^#deb /s/sha256:.*/sha256:$(echo "" | sha256sum | cut -d' ' -f1)/" "$work/copy/requirements-12.txt"
PATH="$work/bin:$PATH" "$work/copy/make_toolkit.sh" 12 "$work/cache12/cuda" >"$work/out" 2>&1 || fail "make_toolkit.sh 12 failed"
for file in bin/nvcc bin/ptxas bin/nvcc.profile nvvm/bin/cicc nvvm/libdevice/libdevice.10.bc include/crt/host_config.h include/cuda_runtime_api.h \
  include/nccl.h lib64/libcudart_static.a lib64/libcudadevrt.a lib64/libnccl.so lib64/libcublasLt.so.12; do
  [ -e "$work/cache12/cuda/$file" ] || { echo "no $file" >"$work/out"; fail "make_toolkit.sh 12: the toolkit is not whole"; }
done
exit $bad
