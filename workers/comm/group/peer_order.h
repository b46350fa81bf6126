// The order in which a rank sends to the others.
#pragma once

#include <algorithm>
#include <numeric>

namespace switchyard::comm {

// A rank sends to the ranks at distances of 1, 2, 3 … strides.  So no rank is the first of all others, and the turns of
// neighbours, which are often on one machine, are spread over the exchange: the links between machines are busy from
// its beginning to its end.  The stride is near a third of the world and coprime to it.
inline int StrideOf(int world) {
  int stride = std::max(1, world / 3);
  while (std::gcd(stride, world) != 1) ++stride;
  return stride;
}

}  // namespace switchyard::comm
