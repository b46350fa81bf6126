// Rows of one micro-batch on one rank: sequences of one length, each of which begins a text of its own.  Plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

struct TrainRows {
  int64_t length = 0;            // tokens of a sequence
  std::vector<int32_t> tokens;   // [S * length]
  std::vector<int32_t> targets;  // [S * length] the next token; negative = not trained
};

}  // namespace switchyard::train
