// Rows that are in the model's dtype or in what that accumulates in, as lanes of the latter.
//
// Internal to workers/ops/core kernel files.  Functions are static: see ../simd.h.
#pragma once

#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/simd.h"

namespace switchyard::ops {
namespace {

template <class Elem>
SY_INLINE VecT<Elem> LoadMixed(const MixedPointer& p, int64_t at, int64_t n) {
  if (p.acc) return LoadPart(static_cast<const AccT<Elem>*>(p.at) + at, n);
  return LoadPart(static_cast<const Elem*>(p.at) + at, n);
}

template <class Elem>
SY_INLINE void StoreMixed(VecT<Elem> x, const MixedPointer& p, int64_t at, int64_t n) {
  if (p.acc) return StorePart<AccT<Elem>>(x, static_cast<AccT<Elem>*>(const_cast<void*>(p.at)) + at, n);
  StorePart<Elem>(x, static_cast<Elem*>(const_cast<void*>(p.at)) + at, n);
}

}  // namespace
}  // namespace switchyard::ops
