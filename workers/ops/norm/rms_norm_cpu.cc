#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/norm/rms_scale.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

template <class In, class Elem>
SY_INLINE void NormGroup(const In* x, const Elem* gamma, double eps, int64_t width, Elem* y) {
  constexpr int kN = Lanes<Elem>::kCount;
  const VecT<Elem> scale = Splat(RmsScale<In, Elem>(x, width, eps));
  for (int64_t j = 0; j < width; j += kN) {
    const int64_t n = width - j < kN ? width - j : kN;
    StorePart<Elem>(LoadPart(gamma + j, n) * Round<Elem>(LoadPart(x + j, n) * scale), y + j, n);
  }
}

template <class In, class Elem>
void Rows(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const In* x = static_cast<const In*>(a.x) + t * a.x_stride;
    Elem* y = static_cast<Elem*>(a.y) + t * a.y_stride;
    for (int64_t g = 0; g < a.groups; ++g) {
      NormGroup<In, Elem>(x + g * a.width, static_cast<const Elem*>(a.gamma), a.eps, a.width, y + g * a.width);
    }
  }
}

}  // namespace

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  VisitElem(args.dtype, [&]<class Elem>() {
    if (args.x_dtype == args.dtype) {
      Rows<Elem, Elem>(args, begin, end);
    } else {
      Rows<AccT<Elem>, Elem>(args, begin, end);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
