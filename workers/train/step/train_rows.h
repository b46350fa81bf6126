// Rows of one micro-batch on one rank: sequences of one length.  Each begins a text of its own; so does a document
// within a sequence, where borders are kept (JobSpec::document_mask).  Plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

struct TrainRows {
  int64_t length = 0;                 // tokens of a sequence
  std::vector<int32_t> tokens = {};   // [S * length]
  std::vector<int32_t> targets = {};  // [S * length] the next token; negative = not trained
  // Indexes of tokens, rising, at which attention and positions begin anew as at the beginning of each sequence.
  std::vector<int32_t> borders = {};
  // Only borders begin anew, and [S * length] above are fewer: sequences have documents of at most `length` tokens, and
  // no rows where none is (WindowPacking::kBestFit).
  bool packed = false;
};

}  // namespace switchyard::train
