#!/usr/bin/env bash
# deploy/sees_gpu.sh counts the GPUs that CUDA may use: with a program that plays nvidia-smi.
set -euo pipefail
script=$(cd "$(dirname "$0")/../.." && pwd)/deploy/sees_gpu.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: Test (UUID: GPU-$i)"; echo "  MIG 1g Device 0: (UUID: MIG-$i)"; done\n' >"$work/nvidia-smi"
chmod +x "$work/nvidia-smi"

bad=0
# expect COUNT ENVIRONMENT...
expect() {
  local want=$1 got status=0
  shift
  got=$(env -u CUDA_VISIBLE_DEVICES PATH="$work:$PATH" "$@" "$script" --count) || status=1
  [ "$got" = "$want" ] && [ $status = $((want == 0)) ] || { echo "FAILED: $*: $got with status $status, not $want"; bad=1; }
}
expect 3 A=B
expect 0 CUDA_VISIBLE_DEVICES=
expect 0 CUDA_VISIBLE_DEVICES=-1
expect 1 CUDA_VISIBLE_DEVICES=2
expect 2 CUDA_VISIBLE_DEVICES=1,0
expect 1 CUDA_VISIBLE_DEVICES=0,3,1
expect 1 CUDA_VISIBLE_DEVICES=GPU-2
[ -z "$(PATH="$work:$PATH" "$script")" ] || { echo "FAILED: says more than its status"; bad=1; }
exit $bad
