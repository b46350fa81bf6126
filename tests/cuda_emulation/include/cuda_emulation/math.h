// CUDA's intrinsics.  The fast ones (__expf, __fdividef ...) are exact here: an error that only their lower accuracy
// makes does not show.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda_emulation/types.h"

using std::max;
using std::min;
// CUDA's min and max also take an int with an unsigned, and int with a 64 bit integer; ours compile only what is the
// same in both.

inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
namespace cuda_emulation {
inline float FastExp(float x) { return std::exp(x); }
inline float FastExp10(float x) { return static_cast<float>(std::pow(10.0, x)); }
inline float FastLog(float x) { return std::log(x); }
inline float FastLog2(float x) { return std::log2(x); }
inline float FastPow(float x, float y) { return std::pow(x, y); }
inline float FastSin(float x) { return std::sin(x); }
inline float FastCos(float x) { return std::cos(x); }
}  // namespace cuda_emulation
// Macros, because the C library declares functions of these names, which mean something else.
#define __expf(x) ::cuda_emulation::FastExp(x)
#define __exp10f(x) ::cuda_emulation::FastExp10(x)
#define __logf(x) ::cuda_emulation::FastLog(x)
#define __log2f(x) ::cuda_emulation::FastLog2(x)
#define __powf(x, y) ::cuda_emulation::FastPow(x, y)
#define __sinf(x) ::cuda_emulation::FastSin(x)
#define __cosf(x) ::cuda_emulation::FastCos(x)
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
// These say: do not fuse.  The emulated sources are compiled with -ffp-contract=off.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i);
    unsigned byte = static_cast<unsigned>(both >> (8 * (pick & 7))) & 0xFF;
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(hi) << 32 | lo) >> (shift & 31));
}

// Loads and stores with a cache hint.
template <class Value>
inline Value __ldg(const Value* address) {
  return *address;
}
template <class Value>
inline Value __ldcs(const Value* address) {
  return *address;
}
template <class Value>
inline Value __ldca(const Value* address) {
  return *address;
}
template <class Value>
inline Value __ldcg(const Value* address) {
  return *address;
}
template <class Value>
inline Value __ldlu(const Value* address) {
  return *address;
}
template <class Value>
inline Value __ldcv(const Value* address) {
  return *static_cast<const volatile Value*>(address);
}
template <class Value>
inline void __stcs(Value* address, Value value) {
  *address = value;
}
template <class Value>
inline void __stcg(Value* address, Value value) {
  *address = value;
}
template <class Value>
inline void __stwt(Value* address, Value value) {
  *address = value;
}
inline size_t __cvta_generic_to_shared(const void* pointer) { return reinterpret_cast<size_t>(pointer); }
