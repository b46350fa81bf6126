// The gate of a shared expert, as its backward needs it.  On the CPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// dlogit = dgate * the derivative of the sigmoid that made `gate`.
inline void SigmoidBackward(const TensorView& gate, const TensorView& d_gate, const TensorView& d_logit) {
  VisitDType(d_logit.dtype(), [&]<class Elem>() {
    for (int64_t t = 0; t < gate.dim(0); ++t) {
      const Acc<Elem> s = *gate.row<Acc<Elem>>(t);
      *d_logit.row<Elem>(t) = static_cast<Elem>(*d_gate.row<Acc<Elem>>(t) * s * (1 - s));
    }
  });
}

inline void Sigmoid(const TensorView& logit, const TensorView& gate) {
  VisitDType(gate.dtype(), [&]<class Number>() {
    for (int64_t t = 0; t < gate.dim(0); ++t) {
      const auto g = static_cast<Acc<Number>>(*logit.row<Number>(t));
      *gate.row<Number>(t) = static_cast<Number>(1 / (1 + std::exp(-g)));
    }
  });
}

}  // namespace switchyard::moe
