// The way back of the ops that treat each row by itself, and sums over rows.
#include "workers/ops/core/backward_kernels_impl.h"
#include "workers/ops/core/mixed_rows.h"
#include "workers/ops/norm/rms_scale.h"
#include "workers/ops/rope/rotate_head.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

// One group of one row; x, dy and dx begin at these elements.
struct NormPlace {
  int64_t x, dy, dx;
};

template <class Elem>
SY_INLINE void NormGroupBackward(const RmsNormBackwardArgs& a, const NormPlace& at, AccT<Elem>* dgamma) {
  constexpr int kN = Lanes<Elem>::kCount;
  const Elem* gamma = static_cast<const Elem*>(a.gamma);
  const AccT<Elem> scale =
      a.x.acc ? RmsScale<AccT<Elem>, Elem>(static_cast<const AccT<Elem>*>(a.x.at) + at.x, a.width, a.eps)
              : RmsScale<Elem, Elem>(static_cast<const Elem*>(a.x.at) + at.x, a.width, a.eps);
  VecT<Elem> dots = {};
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> dn = LoadPart(gamma + j, n) * LoadMixed<Elem>(a.dy, at.dy + j, n);
    dots = Fma(dn, LoadMixed<Elem>(a.x, at.x + j, n), dots);
  }
  const VecT<Elem> pull = Splat(SumLanes(dots) * scale * scale / static_cast<AccT<Elem>>(a.width));
  for (int64_t j = 0; j < a.width; j += kN) {
    const int64_t n = a.width - j < kN ? a.width - j : kN;
    const VecT<Elem> x = LoadMixed<Elem>(a.x, at.x + j, n), dy = LoadMixed<Elem>(a.dy, at.dy + j, n);
    VecT<Elem> dx = (LoadPart(gamma + j, n) * dy - x * pull) * scale;
    if (a.accumulate) dx = LoadMixed<Elem>(a.dx, at.dx + j, n) + dx;
    StoreMixed<Elem>(dx, a.dx, at.dx + j, n);
    if (dgamma == nullptr) continue;
    StorePart<AccT<Elem>>(Fma(dy, Round<Elem>(x * scale), LoadPart(dgamma + j, n)), dgamma + j, n);
  }
}

template <class Acc>
SY_INLINE void Zero(Acc* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0;
}

}  // namespace

void RmsNormBackwardRows(const RmsNormBackwardArgs& a, int64_t begin, int64_t end, void* dgamma) {
  VisitElem(a.dtype, [&]<class Elem>() {
    AccT<Elem>* sums = static_cast<AccT<Elem>*>(dgamma);
    if (sums != nullptr) Zero(sums, a.width);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t g = 0; g < a.groups; ++g) {
        const int64_t at = g * a.width;
        NormGroupBackward<Elem>(a, {t * a.x_stride + at, t * a.dy_stride + at, t * a.dx_stride + at}, sums);
      }
    }
  });
}

void SwiGluBackwardRows(const SwiGluBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    constexpr AccT<Elem> kOne = 1;
    for (int64_t t = begin; t < end; ++t) {
      const Elem* gate = static_cast<const Elem*>(a.sums) + t * a.sums_stride;
      const Elem* dhidden = static_cast<const Elem*>(a.dhidden) + t * a.dhidden_stride;
      Elem* dgate = static_cast<Elem*>(a.dsums) + t * a.dsums_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> g = LoadPart(gate + j, n), up = LoadPart(gate + a.width + j, n), d = LoadPart(dhidden + j, n);
        const VecT<Elem> s = kOne / (Exp(-g) + kOne);
        StorePart<Elem>(d * up * (s * (g * (kOne - s) + kOne)), dgate + j, n);
        StorePart<Elem>(d * (g * s), dgate + a.width + j, n);
      }
    }
  });
}

void ColumnSums(const ColumnSumArgs& a, int64_t begin, int64_t end, void* sums) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t j = 0; j < a.width; j += kN) {
      const int64_t n = a.width - j < kN ? a.width - j : kN;
      const Elem* x = static_cast<const Elem*>(a.x) + j;
      VecT<Elem> sum = {};
      for (int64_t t = begin; t < end; ++t) sum += LoadPart(x + t * a.x_stride, n);
      StorePart<AccT<Elem>>(sum, static_cast<AccT<Elem>*>(sums) + j, n);
    }
  });
}

void AddPartials(const AddPartialsArgs& a, int64_t begin, int64_t end) {
  const auto add = [&]<class Acc>() {
    constexpr int kN = Lanes<Acc>::kCount;
    Acc* to = static_cast<Acc*>(a.to);
    for (int64_t j = begin; j < end; j += kN) {
      const int64_t n = end - j < kN ? end - j : kN;
      VecT<Acc> sum = {};
      for (int64_t i = 0; i < a.count; ++i) sum += LoadPart(static_cast<const Acc*>(a.partials) + i * a.width + j, n);
      StorePart<Acc>(LoadPart(to + j, n) + sum, to + j, n);
    }
  };
  if (a.dtype == 1) {
    add.template operator()<double>();
  } else {
    add.template operator()<float>();
  }
}

void RopeBackwardRows(const RopeArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) {
      const AccT<Elem>* cos = static_cast<const AccT<Elem>*>(a.cos) + a.table_rows[t] * a.half;
      const AccT<Elem>* sin = static_cast<const AccT<Elem>*>(a.sin) + a.table_rows[t] * a.half;
      Elem* row = static_cast<Elem*>(a.x) + t * a.x_stride;
      for (int64_t h = 0; h < a.heads; ++h) RotateHead<true>(cos, sin, a.half, row + h * a.head_dim);
    }
  });
}

void ClampBackwardRows(const ClampBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    const VecT<Elem> limit = Splat(static_cast<AccT<Elem>>(a.limit));
    for (int64_t t = begin; t < end; ++t) {
      const Elem* x = static_cast<const Elem*>(a.x) + t * a.x_stride;
      Elem* dx = static_cast<Elem*>(a.dx) + t * a.dx_stride;
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> v = LoadPart(x + j, n), d = LoadPart(dx + j, n);
        StorePart<Elem>(((v > limit) | (v < -limit)) ? VecT<Elem>{} : d, dx + j, n);
      }
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
