#!/usr/bin/env bash
# Which CUDA sources differ from those that last ran on a GPU, by the list of hashes in VERIFIED.md.  Exit 0 also if all do; 1 if the
# list is not as it should be.
# usage: cuda_changes.sh [--list] [root]      --list: the list as it is now, a line "sha256  file" for each, to be put into VERIFIED.md
set -euo pipefail
list=0
if [ "${1:-}" = --list ]; then
  list=1
  shift
fi
cd "${1:-$(dirname "$0")/../..}"
verified=tests/gpu/VERIFIED.md

# Kernels, what calls the CUDA runtime, NCCL, and the host code that takes another way on a device, by name or one by one; the
# emulation in tests/ is none.
others='/packed_uploads\.|/gemm_job\.|/gemm/weight\.cc|/cold_experts\.|/replicated_experts\.|/row_scratch\.|/kv_cache\.'
now=$(git ls-files --cached --others --exclude-standard workers | grep -E "(_cuda\.|/cuda_|/late_|/nccl_|/device_|_device\.|_upload\.|^workers/ops/cuda/|$others)[^/]*\$" | sort |
  while read -r file; do [ ! -f "$file" ] || sha256sum "$file"; done)
if [ $list -eq 1 ]; then
  printf '%s\n' "$now"
  exit 0
fi

grep -q '^```cuda-sources$' "$verified" || { echo "$verified: no block cuda-sources"; exit 1; }
then=$(awk '/^```cuda-sources$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' "$verified")
if grep -vE '^([0-9a-f]{64}  [^ ]+)?$' <<<"$then"; then
  echo "$verified: the lines above are no \"sha256  file\""
  exit 1
fi
awk '
  NF == 0 { next }
  FNR == NR { was[$2] = $1; next }
  { ++all; seen[$2] = 1 }
  !($2 in was) { print "new:     " $2; ++different; next }
  was[$2] != $1 { print "changed: " $2; ++different }
  END {
    for (file in was) if (!(file in seen)) print "gone:    " file
    printf "%d of %d CUDA source files have not run on a GPU as they are\n", different, all
  }' <(printf '%s\n' "$then") <(printf '%s\n' "$now")
