// Which tokens may come next.  A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::grammar {

// Either a list or, where that is shorter, one bit for each token of the vocabulary.
struct TokenMask {
  std::vector<int32_t> ids;  // rising; used if `bits` is empty
  std::string bits;          // token t is bit t % 8, from the lowest on, of byte t / 8

  bool operator==(const TokenMask& other) const = default;
};

}  // namespace switchyard::grammar
