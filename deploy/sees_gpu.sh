#!/usr/bin/env bash
# Succeeds where there is a GPU that CUDA may use, and a driver that a program of ours can run on.
# usage: sees_gpu.sh [--count | --toolkit]     --count: prints how many, also 0; --toolkit: prints which toolkit the driver runs, 12 or 13 (or none is known)
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
# The newest CUDA that the driver runs: "12.2", or empty where nvidia-smi does not say.
cuda=
[ "$gpus" -eq 0 ] || cuda=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1 || true)
if [ -n "$cuda" ] && [ "${cuda%.*}" -lt 12 ]; then
  echo "sees_gpu.sh: the driver is too old: it runs CUDA $cuda, the build is for CUDA 13.0 (driver 580 or newer) or 12.4 (525 or newer)" >&2
  gpus=0
fi
case "${1:-}" in
  --count) echo "$gpus" ;;
  --toolkit) [ "${cuda%.*}" = 12 ] && echo 12 || echo 13 ;;
esac
[ "$gpus" -gt 0 ]
