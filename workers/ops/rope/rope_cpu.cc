#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/rope/rotate_head.h"

namespace switchyard::ops::SY_KERNEL_NS {

void RopeRows(const RopeArgs& a, int64_t begin, int64_t end) {
  VisitElem(a.dtype, [&]<class Elem>() {
    for (int64_t t = begin; t < end; ++t) {
      const AccT<Elem>* cos = static_cast<const AccT<Elem>*>(a.cos) + a.table_rows[t] * a.half;
      const AccT<Elem>* sin = static_cast<const AccT<Elem>*>(a.sin) + a.table_rows[t] * a.half;
      Elem* row = static_cast<Elem*>(a.x) + t * a.x_stride;
      for (int64_t h = 0; h < a.heads; ++h) RotateHead<false>(cos, sin, a.half, row + h * a.head_dim);
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
