// Packs columns of a row-major matrix as a panel with the matrix's rows as k: only pairs of bf16 are transposed.
#include "workers/ops/core/simd.h"
#include "workers/ops/gemm/kernels/gemm_kernels.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// A vector of elements as floats, the first n of them read; a double is rounded.
template <class Elem>
SY_INLINE Floats LoadFloats(const Elem* from, int64_t n) {
  if constexpr (sizeof(Elem) == 8) {
    Floats out = {};
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(from[i]);
    return out;
  } else {
    return LoadPart(from, n);
  }
}

template <class Elem>
SY_INLINE void StoreFloats(Floats x, Elem* to) {
  if constexpr (sizeof(Elem) == 8) {
    for (int i = 0; i < kFloats; ++i) to[i] = x[i];
  } else {
    Store(x, to);
  }
}

// Bits of bf16 in the lower half of each lane.
template <class Elem>
SY_INLINE Words LoadBf16(const Elem* from, int64_t n) {
  const Floats x = LoadFloats(from, n);
  // Bf16 is copied, signalling NaNs included.
  if constexpr (__is_same(Elem, Bf16Bits)) {
    return reinterpret_cast<Words>(x) >> 16;
  } else {
    return RoundToBf16(x) >> 16;
  }
}

template <class Elem>
SY_INLINE const Elem* RowAt(const GemmPackPanelArgs& args, int64_t k) {
  const int64_t row = args.row_idx != nullptr ? args.row_idx[k] : k;
  return static_cast<const Elem*>(args.x) + row * args.x_stride;
}

// How many of the panel's columns [first, first + kFloats) exist.
SY_INLINE int64_t Existing(const GemmPackPanelArgs& args, int64_t first) {
  const int64_t n = args.columns - first;
  return n < 0 ? 0 : n < kFloats ? n : kFloats;
}

// [padded_k / 2][32][2]
template <class From>
void PackPairs(const GemmPackPanelArgs& args) {
  uint32_t* to = static_cast<uint32_t*>(args.panel);
  for (int64_t k = 0; k < args.padded_k; k += 2) {
    for (int64_t c = 0; c < kGemmPanel; c += kFloats, to += kFloats) {
      const int64_t n = Existing(args, c);
      Words words = {};
      if (n > 0 && k < args.k) words = LoadBf16(RowAt<From>(args, k) + c, n);
      if (n > 0 && k + 1 < args.k) words |= LoadBf16(RowAt<From>(args, k + 1) + c, n) << 16;
      __builtin_memcpy(to, &words, sizeof(words));
    }
  }
}

// [padded_k][32]
template <class From, class To>
void PackPlain(const GemmPackPanelArgs& args) {
  To* to = static_cast<To*>(args.panel);
  for (int64_t k = 0; k < args.padded_k; ++k) {
    for (int64_t c = 0; c < kGemmPanel; c += kFloats, to += kFloats) {
      const int64_t n = Existing(args, c);
      if (n == 0 || k >= args.k) {
        StoreFloats(Floats{}, to);
      } else if constexpr (sizeof(From) == 8 && sizeof(To) == 8) {
        const From* from = RowAt<From>(args, k) + c;
        for (int64_t i = 0; i < kFloats; ++i) to[i] = i < n ? from[i] : 0;
      } else {
        StoreFloats(LoadFloats(RowAt<From>(args, k) + c, n), to);
      }
    }
  }
}

}  // namespace

void GemmPackPanel(const GemmPackPanelArgs& args) {
  VisitElem(args.x_dtype, [&]<class From>() {
    VisitElem(args.dtype, [&]<class To>() {
      if constexpr (__is_same(To, Bf16Bits)) {
        PackPairs<From>(args);
      } else {
        PackPlain<From, To>(args);
      }
    });
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
