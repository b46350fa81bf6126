// Which tokens may come next.  A value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace switchyard::grammar {

// Either a list or, where that is shorter, one bit for each token of the vocabulary.
struct TokenMask {
  std::vector<int32_t> ids;  // rising; used if `bits` is empty
  std::string bits;          // token t is bit t % 8, from the lowest on, of byte t / 8

  bool empty() const { return ids.empty() && bits.empty(); }  // no token
  bool operator==(const TokenMask& other) const = default;
};

// Shared by the automaton that made it and all texts at that place.
using MaskPtr = std::shared_ptr<const TokenMask>;

}  // namespace switchyard::grammar
