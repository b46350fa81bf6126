#!/usr/bin/env bash
# Succeeds where there is a GPU that CUDA may use.
# usage: sees_gpu.sh [--count]      --count: prints how many, also 0
# CUDA_VISIBLE_DEVICES counts as CUDA reads it: what it names, up to the first that is none; empty: none.
set -euo pipefail

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
[ "$gpus" -gt 0 ] || gpus=$(compgen -G '/dev/nvidia[0-9]*' | wc -l || true)
if [ "$gpus" -gt 0 ] && [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  visible=0
  IFS=, read -ra named <<<"$CUDA_VISIBLE_DEVICES"
  for name in "${named[@]}"; do
    [[ "$name" =~ ^(GPU-|MIG-) ]] || { [[ "$name" =~ ^[0-9]+$ ]] && [ "$name" -lt "$gpus" ]; } || break
    visible=$((visible + 1))
  done
  gpus=$visible
fi
[ "${1:-}" != --count ] || echo "$gpus"
[ "$gpus" -gt 0 ]
