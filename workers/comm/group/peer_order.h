// In which order a rank sends to the others.
#pragma once

#include <algorithm>
#include <numeric>

namespace switchyard::comm {

// Frames go to the ranks at 1, 2, 3 … strides from a rank: nobody is everybody's first, and neighbours, who are often
// on one machine, have their turns spread over the exchange, so that the links between machines are busy from its
// beginning to its end.  Near a third of the world, without a common divisor with it.
inline int StrideOf(int world) {
  int stride = std::max(1, world / 3);
  while (std::gcd(stride, world) != 1) ++stride;
  return stride;
}

}  // namespace switchyard::comm
