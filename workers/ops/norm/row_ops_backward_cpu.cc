// The backward pass of small ops that treat each row by itself, and sums over rows.
#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

void SwiGluBackwardRows(const SwiGluBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    constexpr AccT<Elem> kOne = 1;
    for (int64_t t = begin; t < end; ++t) {
      const Elem *gate = RowAt<Elem>(a.sums, t), *dhidden = RowAt<Elem>(a.dhidden, t);
      Elem* dgate = RowAt<Elem>(a.dsums, t);
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
      VecT<Elem> sum = {};
      for (int64_t t = begin; t < end; ++t) sum += LoadPart(RowAt<const Elem>(a.x, t) + j, n);
      StorePart<AccT<Elem>>(sum, static_cast<AccT<Elem>*>(sums) + j, n);
    }
  });
}

void AddPartials(const AddPartialsArgs& a, int64_t begin, int64_t end) {
  VisitAcc(a.dtype, [&]<class Acc>() {
    constexpr int kN = Lanes<Acc>::kCount;
    Acc* to = static_cast<Acc*>(a.to);
    for (int64_t j = begin; j < end; j += kN) {
      const int64_t n = end - j < kN ? end - j : kN;
      VecT<Acc> sum = {};
      for (int64_t i = 0; i < a.count; ++i) sum += LoadPart(static_cast<const Acc*>(a.partials) + i * a.width + j, n);
      StorePart<Acc>(LoadPart(to + j, n) + sum, to + j, n);
    }
  });
}

void ClampBackwardRows(const ClampBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    const VecT<Elem> limit = Splat(static_cast<AccT<Elem>>(a.limit));
    for (int64_t t = begin; t < end; ++t) {
      const Elem* x = RowAt<Elem>(a.x, t);
      Elem* dx = RowAt<Elem>(a.dx, t);
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> v = LoadPart(x + j, n), d = LoadPart(dx + j, n);
        StorePart<Elem>(((v > limit) | (v < -limit)) ? VecT<Elem>{} : d, dx + j, n);
      }
    }
  });
}

void RowScaleBackwardRows(const RowScaleBackwardArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    constexpr int kN = Lanes<Elem>::kCount;
    for (int64_t i = begin; i < end; ++i) {
      const Elem* x = RowAt<Elem>(a.x, i);
      Elem *dy = RowAt<Elem>(a.dy, i), *y = RowAt<Elem>(a.y, i);
      const VecT<Elem> weight = Splat(*RowAt<const AccT<Elem>>(a.weight, i));
      VecT<Elem> sum = {};
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> in = LoadPart(x + j, n), gradient = LoadPart(dy + j, n);
        sum = Fma(gradient, in, sum);
        StorePart<Elem>(weight * gradient, dy + j, n);
        StorePart<Elem>(weight * in, y + j, n);
      }
      *RowAt<AccT<Elem>>(a.dweight, i) = SumLanes(sum);
    }
  });
}

void ExpertBiasBackwardRows(const ExpertBiasBackwardArgs& a, int64_t begin, int64_t end, void* sums) {
  VisitElem(a.dtype, [&]<class Elem>() {
    using Acc = AccT<Elem>;
    constexpr int kN = Lanes<Elem>::kCount;
    Acc* to = static_cast<Acc*>(sums);
    const Elem* bias = static_cast<const Elem*>(a.bias);
    for (int64_t j = 0; j < a.width; ++j) to[j] = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Elem* d = RowAt<const Elem>(a.d, a.rows == nullptr ? i : a.rows[i]);
      const VecT<Elem> weight = Splat(*RowAt<const Acc>(a.weight, i));
      VecT<Elem> dot = {};
      for (int64_t j = 0; j < a.width; j += kN) {
        const int64_t n = a.width - j < kN ? a.width - j : kN;
        const VecT<Elem> gradient = LoadPart(d + j, n);
        dot = Fma(gradient, LoadPart(bias + j, n), dot);
        StorePart<Acc>(Fma(weight, gradient, LoadPart(to + j, n)), to + j, n);
      }
      *RowAt<Acc>(a.dweight, i) += SumLanes(dot);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
