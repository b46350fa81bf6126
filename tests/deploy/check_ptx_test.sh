#!/usr/bin/env bash
# check_ptx.sh finds kernels that could read what the kernel before them still writes.  usage: check_ptx_test.sh ROOT
set -euo pipefail
check=$1/deploy/ci/check_ptx.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

function=
# kernel LINE...: the PTX of $function and of a kernel of these lines.
kernel() {
  printf -- "$function"
  printf '.visible .entry Kernel(\n\t.param .u64 p\n)\n{\n\tld.param.u64 \t%%rd1, [p];\n'
  printf '\t%s;\n' "$@"
  printf '\tret;\n\n}\n'
}
# expect STATUS TEXT LINE...
expect() {
  local status=0 said want=$1 text=$2
  shift 2
  kernel "$@" >"$work/kernel.ptx"
  said=$("$check" "$work/kernel.ptx") || status=$?
  [ "$status" = "$want" ] && grep -qF -- "$text" <<<"$said" && return
  echo "expected status $want and \"$text\"; status $status, said: $said"
  exit 1
}
wait=griddepcontrol.wait
expect 0 "1 kernels wait" $wait "ld.global.f32 %f1, [%rd1]"
expect 0 "1 kernels wait" "prefetch.global.L2 [%rd1]" "st.shared.u32 [%r1], 0" $wait "st.global.f32 [%rd1], %f1"
expect 1 "Kernel: 2 reads by the non-coherent path, the first:" $wait "ld.global.nc.f32 %f1, [%rd1]" "@%p1 ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]"
for early in "ld.global.f32 %f1, [%rd1]" "ld.v2.u32 {%r1, %r2}, [%rd1]" "@!%p2 st.global.u32 [%rd1], 0" "atom.global.add.u32 %r1, [%rd1], 1" \
  "cp.async.cg.shared.global [%r1], [%rd1], 16"; do
  expect 1 "Kernel: touches global memory before griddepcontrol.wait:" "$early" $wait
done
expect 1 "Kernel: never waits" "mov.u32 %r1, 0"
# What a function does where it is called.
function=$'.func (.param .b32 r) Helper(\n\t.param .b64 p\n)\n{\n\tld.f32 \t%%f1, [%%rd1];\n\tret;\n}\n'
expect 0 "1 kernels wait" $wait "call.uni (r), Helper, (p)"
expect 1 "Kernel: touches global memory before griddepcontrol.wait: calls Helper" "call.uni (r), Helper, (p)" $wait
function=${function/ld.f32/$wait;\\n\\tld.f32}
expect 0 "1 kernels wait" "call.uni (r), Helper, (p)" $wait
function=${function/ld.f32/ld.global.nc.f32}
expect 1 "Helper: 1 reads by the non-coherent path, the first:" $wait
echo "nothing" >"$work/kernel.ptx"
! "$check" "$work/kernel.ptx" >/dev/null || { echo "a file without a kernel passed"; exit 1; }
echo "check_ptx.sh finds them"
