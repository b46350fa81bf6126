// Rows of one micro-batch on one rank: sequences of one length.  Each begins a text of its own; so does a document
// within a sequence, where borders are kept (JobSpec::document_mask).  Plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

// Of a pair of answers to a prompt: sums over the tokens of each answer.
struct PairLogProbs {
  double chosen = 0, rejected = 0;
  bool operator==(const PairLogProbs& other) const = default;
};

struct TrainRows {
  int64_t length = 0;                 // tokens of a sequence
  std::vector<int32_t> tokens = {};   // [S * length]
  std::vector<int32_t> targets = {};  // [S * length] the next token; negative = not trained
  // Indexes of tokens, rising, at which attention and positions begin anew as at the beginning of each sequence.
  std::vector<int32_t> borders = {};
  // Only borders begin anew, and [S * length] above are fewer: sequences have documents of at most `length` tokens, and
  // no rows where none is (WindowPacking::kBestFit).
  bool packed = false;
  // Of packed rows of pairs: documents 2i and 2i + 1 are the prompt with the chosen and with the rejected answer of
  // pair pairs[i], a number among the pairs of the data source.  What the reference says of them may be missing.
  std::vector<int64_t> pairs = {};            // [documents / 2]
  std::vector<PairLogProbs> references = {};  // [pairs]
  // Where random numbers of dropout depend on the place of a row: in the step's batch of all ranks, that of the first
  // sequence here; and of packed rows the indexes of tokens at which sequences begin, the first included.
  int64_t first_sequence = 0;
  std::vector<int32_t> begins = {};
};

}  // namespace switchyard::train
