#!/usr/bin/env bash
# deploy/sees_gpu.sh counts the GPUs that CUDA may use, and knows which CUDA their driver runs: with a program that plays nvidia-smi.
set -euo pipefail
script=$(cd "$(dirname "$0")/../.." && pwd)/deploy/sees_gpu.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/nvidia-smi" <<'EOF'
#!/bin/sh
if [ "${1:-}" = -L ]; then
  for i in 0 1 2; do echo "GPU $i: Test (UUID: GPU-$i)"; echo "  MIG 1g Device 0: (UUID: MIG-$i)"; done
else
  echo "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: ${FAKE_CUDA:-13.0}     |"
fi
EOF
chmod +x "$work/nvidia-smi"

bad=0
# run FLAG ENVIRONMENT...
run() { env -u CUDA_VISIBLE_DEVICES PATH="$work:$PATH" "${@:2}" "$script" $1 2>"$work/err"; }
# expect COUNT ENVIRONMENT...
expect() {
  local want=$1 got status=0
  shift
  got=$(run --count "$@") || status=1
  [ "$got" = "$want" ] && [ $status = $((want == 0)) ] || { echo "FAILED: $*: $got with status $status, not $want"; bad=1; }
}
expect 3 A=B
expect 0 CUDA_VISIBLE_DEVICES=
expect 0 CUDA_VISIBLE_DEVICES=-1
expect 1 CUDA_VISIBLE_DEVICES=2
expect 2 CUDA_VISIBLE_DEVICES=1,0
expect 1 CUDA_VISIBLE_DEVICES=0,3,1
expect 1 CUDA_VISIBLE_DEVICES=GPU-2
[ -z "$(run '' A=B)" ] && [ ! -s "$work/err" ] || { echo "FAILED: says more than its status"; bad=1; }

# A driver that runs neither of our toolkits: no GPU to build for, and the reason with both versions.
expect 0 FAKE_CUDA=11.8
grep -q 'runs CUDA 11.8, the build is for CUDA 13.0 .* or 12.4' "$work/err" || { echo "FAILED: does not say both versions:"; cat "$work/err"; bad=1; }
# toolkit WANT FAKE_CUDA
toolkit() {
  local got
  got=$(run --toolkit FAKE_CUDA="$2")
  [ "$got" = "$1" ] && [ ! -s "$work/err" ] || { echo "FAILED: CUDA $2: toolkit $got, not $1"; cat "$work/err"; bad=1; }
}
toolkit 12 12.2
toolkit 12 12.8
toolkit 13 13.0
toolkit 13 14.1
toolkit 13 N/A  # not known
expect 3 FAKE_CUDA=N/A
exit $bad
