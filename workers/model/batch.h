// The rows of one forward pass: which token of which sequence each row is, and how it is rotated.
//
// A step has own rows, those of this rank's sequences, which attention works on, and computed rows, which all else
// works on.  They are the same but for steps that lend rows (row_lending.h), where either may be more.
//
// Plain data, reused from step to step.  Rows of a sequence are neighbours; sequences may have any number of them, so a
// batch mixes prefill chunks and single decodes.  A batch may be empty: a rank without tokens still takes part in the
// expert exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/ops/kv_cache_view.h"

namespace switchyard {

struct Batch {
  std::vector<int32_t> tokens;          // [T] of the computed rows
  std::vector<int32_t> rope_rows;       // [T] of the model's RopeTable (RowOf): the position, but for long prompts
  std::vector<SequenceRows> sequences;  // cover the own rows in order; block tables are borrowed from the slots
  std::vector<int32_t> logit_rows;      // own rows whose logits are wanted, rising

  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }  // computed
  int64_t num_own_rows() const {
    return sequences.empty() ? 0 : sequences.back().row_begin + sequences.back().num_query;
  }
  void Clear() {
    tokens.clear();
    rope_rows.clear();
    sequences.clear();
    logit_rows.clear();
  }
};

}  // namespace switchyard
