// The instruction set of the CPU kernels: found once by cpuid, capped by SY_ISA (scheduler/base/env.h).
//
// Levels are ordered: a machine with one has all lower ones.  A result's bits are the same for every batch, thread
// count and rank of one level, but differ between levels, so ranks of different levels form no group.  Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::ops {

enum class Isa : uint8_t {
  kScalar,      // for every x86-64 (or other) processor; no fma
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, VL, DQ
  kAvx512Bf16,  // and vdpbf16ps
  kAmx,         // and AMX tiles of bf16; the first detection asks the system for tile state (arch_prctl)
};

// "scalar", "avx2", "avx512", "avx512_bf16", "amx".
const char* IsaName(Isa isa);
// Errors (InvalidArgument): a name that is none of them.
absl::StatusOr<Isa> ParseIsa(absl::string_view name);

// The highest level that the machine has and the system permits.
Isa DetectedIsa();
// Whether this machine's processor has vpdpbusd beside that level's instructions: with kAvx2 AVX-VNNI, with kAvx512
// AVX-512 VNNI.  Integer sums of products with it are the same, so it is no level.
bool HasByteDot(Isa isa);
// DetectedIsa(), or SY_ISA if that is lower.  Fixed at the first call.
Isa CurrentIsa();
// Whether SY_ISA is a known name: for a program's start.  CurrentIsa() ignores an unknown one.
absl::Status CheckIsaSetting();

}  // namespace switchyard::ops
