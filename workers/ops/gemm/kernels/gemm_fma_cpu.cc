// The kernels of every dtype that need nothing but multiply-adds: compiled once per instruction set (gemm.cmake).
//
// Sums live in registers, MR rows × NV vectors, and walk k from 0 to the end.  16-bit numbers become fp32 on the way:
// x when its block is packed, weights when they are loaded (a bf16 is the upper half of an fp32).
#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kMaxRows = 12, kSums = 24;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kMaxRows = 6, kSums = 12;
#else
constexpr int kVectorBytes = 16, kMaxRows = 4, kSums = 8;
#endif
constexpr int kPrefetchBytes = 2048;  // ahead of the loads, in the stream of panels

typedef float VecF __attribute__((vector_size(kVectorBytes)));
typedef double VecD __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VecU __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfU __attribute__((vector_size(kVectorBytes / 2)));

template <class Elem>
struct NativeOf {
  using Vec = VecF;
};
template <>
struct NativeOf<double> {
  using Vec = VecD;
};
template <class Elem>
using Native = typename NativeOf<Elem>::Vec;

#if defined(__AVX512F__)
SY_INLINE VecF MulAdd(VecF a, VecF b, VecF c) { return _mm512_fmadd_ps(a, b, c); }
SY_INLINE VecD MulAdd(VecD a, VecD b, VecD c) { return _mm512_fmadd_pd(a, b, c); }
SY_INLINE VecF Broadcast(const float* x) { return _mm512_set1_ps(*x); }
SY_INLINE VecD Broadcast(const double* x) { return _mm512_set1_pd(*x); }
SY_INLINE VecF LoadHalves(const Fp16Bits* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
#elif defined(__AVX2__)
SY_INLINE VecF MulAdd(VecF a, VecF b, VecF c) { return _mm256_fmadd_ps(a, b, c); }
SY_INLINE VecD MulAdd(VecD a, VecD b, VecD c) { return _mm256_fmadd_pd(a, b, c); }
SY_INLINE VecF Broadcast(const float* x) { return _mm256_broadcast_ss(x); }
SY_INLINE VecD Broadcast(const double* x) { return _mm256_broadcast_sd(x); }
SY_INLINE VecF LoadHalves(const Fp16Bits* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
#else
SY_INLINE VecF MulAdd(VecF a, VecF b, VecF c) { return a * b + c; }
SY_INLINE VecD MulAdd(VecD a, VecD b, VecD c) { return a * b + c; }
SY_INLINE VecF Broadcast(const float* x) { return *x - VecF{}; }
SY_INLINE VecD Broadcast(const double* x) { return *x - VecD{}; }
SY_INLINE VecF LoadHalves(const Fp16Bits* x) {
  VecF out;
  for (int i = 0; i < kVectorBytes / 4; ++i) {
    _Float16 half;
    __builtin_memcpy(&half, x + i, 2);
    out[i] = static_cast<float>(half);
  }
  return out;
}
#endif

// Weights of one k (two for bf16) and one vector of columns.
template <class Elem>
struct Columns {
  static constexpr int kDepth = 1;
  Native<Elem> w[1];
  SY_INLINE void Read(const Elem* from) { w[0] = LoadBytes<Native<Elem>>(from); }
};
template <>
struct Columns<Fp16Bits> {
  static constexpr int kDepth = 1;
  VecF w[1];
  SY_INLINE void Read(const Fp16Bits* from) { w[0] = LoadHalves(from); }
};
template <>
struct Columns<Bf16Bits> {
  static constexpr int kDepth = 2;
  VecF w[2];
  SY_INLINE void Read(const Bf16Bits* from) {
    const VecU pair = LoadBytes<VecU>(from);
    w[0] = reinterpret_cast<VecF>(pair << 16);
    w[1] = reinterpret_cast<VecF>(pair & 0xffff0000u);
  }
};

template <class Elem, int MR, int NV>
void Multiply(const GemmBlockArgs& args, int first_column) {
  using Acc = AccT<Elem>;
  using Vec = Native<Elem>;
  constexpr int kLanes = kVectorBytes / sizeof(Acc);
  constexpr int kDepth = Columns<Elem>::kDepth;
  const Acc* a = static_cast<const Acc*>(args.a);
  const Elem* b = static_cast<const Elem*>(args.b) + first_column * kDepth;
  Vec sum[MR][NV] = {};
  for (int64_t k = 0; k < args.padded_k; k += kDepth) {
    Columns<Elem> columns[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) columns[v].Read(b + v * kLanes * kDepth);
#pragma GCC unroll 16
    for (int line = 0; line < NV * kLanes * kDepth * static_cast<int>(sizeof(Elem)); line += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(b) + kPrefetchBytes + line);
    }
#pragma GCC unroll 2
    for (int d = 0; d < kDepth; ++d) {
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        const Vec x = Broadcast(a + d * MR + r);
#pragma GCC unroll 16
        for (int v = 0; v < NV; ++v) sum[r][v] = MulAdd(x, columns[v].w[d], sum[r][v]);
      }
    }
    a += kDepth * MR;
    b += kDepth * kGemmPanel;
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) {
      __builtin_memcpy(static_cast<Acc*>(args.c) + r * kGemmPanel + first_column + v * kLanes, &sum[r][v],
                       kVectorBytes);
    }
  }
}

template <class Elem, int MR>
void MultiplyRows(const GemmBlockArgs& args) {
  constexpr int kVectors = kGemmPanel * static_cast<int>(sizeof(AccT<Elem>)) / kVectorBytes;
  constexpr int NV = MR * kVectors <= kSums ? kVectors : 2;
  for (int v = 0; v < kVectors; v += NV) Multiply<Elem, MR, NV>(args, v * kGemmPanel / kVectors);
}

template <class Elem, int MR = kMaxRows>
void Block(const GemmBlockArgs& args) {
  if (args.rows == MR) return MultiplyRows<Elem, MR>(args);
  if constexpr (MR > 1) Block<Elem, MR - 1>(args);
}

template <class Elem>
AccT<Elem> Widen(Elem x) {
  if constexpr (sizeof(Elem) >= 4) {
    return x;
  } else if constexpr (Columns<Elem>::kDepth == 2) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    return LoadBytes<float>(&bits);
  } else {
    return static_cast<float>(LoadBytes<_Float16>(&x));
  }
}

// [padded_k][rows] Acc.
template <class Elem>
void Pack(const GemmPackArgs& args) {
  auto* a = static_cast<AccT<Elem>*>(args.a);
  for (int64_t r = 0; r < args.rows; ++r) {
    const int64_t row = args.row_idx != nullptr ? args.row_idx[r] : r;
    const Elem* x = static_cast<const Elem*>(args.x) + row * args.x_stride;
    int64_t k = 0;
    for (; k < args.k; ++k) a[k * args.rows + r] = Widen(x[k]);
    for (; k < args.padded_k; ++k) a[k * args.rows + r] = 0;
  }
}

template <int kColumns, class Elem>
SY_INLINE void WidenRow(const Elem* x, AccT<Elem>* a) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) a[c] = Widen(x[c]);
}

// [padded_k][columns] Acc.
template <class Elem>
void PackColumns(const GemmPackColumnsArgs& args) {
  const Elem* x = static_cast<const Elem*>(args.x);
  AccT<Elem>* a = static_cast<AccT<Elem>*>(args.a);
  for (int64_t k = 0; k < args.k; ++k, x += args.x_stride, a += args.columns) {
    if (args.columns == kMaxRows) {
      WidenRow<kMaxRows>(x, a);
    } else {
      for (int64_t c = 0; c < args.columns; ++c) a[c] = Widen(x[c]);
    }
  }
  for (int64_t i = 0; i < (args.padded_k - args.k) * args.columns; ++i) a[i] = 0;
}

template <class Elem, class Out, class Write>
SY_INLINE void EachPart(const GemmEpilogueArgs& args, Write&& write) {
  constexpr int64_t kLanes = Lanes<Elem>::kCount;
  for (int64_t r = 0; r < args.rows; ++r) {
    Out* y = static_cast<Out*>(args.y) + r * args.y_stride;
    for (int64_t i = 0; i < args.columns; i += kLanes) {
      const int64_t count = args.columns - i < kLanes ? args.columns - i : kLanes;
      StorePart<Out>(write(r * kGemmPanel + i, i, y + i, count), y + i, count);
    }
  }
}

// Sums of gate and up, with their biases, to one vector of the activation's outputs.  Lower and upper bounds let NaN
// through: Max and Min return their second argument for it.
template <class Vec, class Acc>
SY_INLINE Vec ClampedGlu(Vec gate, Vec up, Acc alpha, Acc limit) {
  gate = Min(Vec{} + limit, gate);
  up = Max(Vec{} - limit, Min(Vec{} + limit, up));
  return gate / (Exp(gate * -alpha) + Acc{1}) * (up + Acc{1});
}

template <class Elem, class Out>
void WriteGated(const GemmEpilogueArgs& args) {
  using Acc = AccT<Elem>;
  const Acc* c = static_cast<const Acc*>(args.c);
  const Acc* up_sums = c + args.rows * kGemmPanel;
  const Elem* bias = static_cast<const Elem*>(args.bias);
  const Elem* up_bias = static_cast<const Elem*>(args.up_bias);
  EachPart<Elem, Out>(args, [&](int64_t at, int64_t column, const Out*, int64_t count) {
    VecT<Elem> gate = Load(c + at), up = Load(up_sums + at);
    if (bias != nullptr) {
      gate = gate + LoadPart<Elem>(bias + column, count);
      up = up + LoadPart<Elem>(up_bias + column, count);
    }
    if (args.limit > 0) return ClampedGlu(gate, up, static_cast<Acc>(args.alpha), static_cast<Acc>(args.limit));
    return gate / (Exp(-gate) + Acc{1}) * up;
  });
}

template <class Elem, class Out>
void WriteOut(const GemmEpilogueArgs& args) {
  using Acc = AccT<Elem>;
  const Acc* c = static_cast<const Acc*>(args.c);
  const Elem* bias = static_cast<const Elem*>(args.bias);
  if (args.gated) return WriteGated<Elem, Out>(args);
  EachPart<Elem, Out>(args, [&](int64_t at, int64_t column, const Out* y, int64_t count) {
    VecT<Elem> sum = Load(c + at);
    if (bias != nullptr) sum = sum + LoadPart<Elem>(bias + column, count);
    if (args.accumulate) sum = LoadPart<Out>(y, count) + sum;
    return sum;
  });
}

}  // namespace

void GemmEpilogue(const GemmEpilogueArgs& args) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.y_dtype == args.dtype) return WriteOut<Elem, Elem>(args);
    WriteOut<Elem, AccT<Elem>>(args);
  });
}

template <class Elem>
static constexpr GemmKernel kKernelOf = {.max_rows = kMaxRows,
                                         .a_bytes = sizeof(AccT<Elem>),
                                         .pack = Pack<Elem>,
                                         .pack_columns = PackColumns<Elem>,
                                         .pack_panel = GemmPackPanel,
                                         .block = Block<Elem>,
                                         .epilogue = GemmEpilogue};
const GemmKernelRow kGemmKernels = {kKernelOf<float>, kKernelOf<double>, kKernelOf<Bf16Bits>, kKernelOf<Fp16Bits>};

}  // namespace switchyard::ops::SY_KERNEL_NS
