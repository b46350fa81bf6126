// The rows of one forward pass: which token of which sequence each row is, and how it is rotated.
//
// Attention works on own rows, those of this rank's sequences; all else works on computed rows.  They differ only in
// steps that give away rows (token_rebalancer.h), where either may be more.  Rows of a sequence are neighbours (in
// training a sequence here is a document, or the part of it in a window); a batch
// mixes prefill chunks and single decodes.  It may be empty: a rank without tokens still takes part in the expert
// exchange. Plain data, reused from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/ops/attention/kv_cache_view.h"
#include "workers/tensor/int_view.h"

namespace switchyard::model {

// A batch in a device's memory.  Borrowed.
struct BatchOnDevice {
  int64_t num_rows = 0;  // with a graph's padding
  IntView tokens;        // [num_rows]
  IntView rope_rows;     // [num_rows]
  IntView logit_rows;
  ops::SequenceBatch sequences;
  const int32_t* num_real_rows = nullptr;  // on the device: rows from here on are padding; null: none are
};

struct Batch {
  std::vector<int32_t> tokens;     // [T] of the computed rows
  std::vector<int32_t> rope_rows;  // [T] of the model's RopeTable (RowOf): the position, but for long prompts
  std::vector<int32_t> adapters;   // [T] of the rows, from 1 (row_adapters.h), 0 = none; empty: no row has one
  std::vector<ops::SequenceRows> sequences;  // cover the own rows in order; block tables are borrowed from the slots
  std::vector<int32_t> logit_rows;           // own rows whose logits are wanted, rising

  int64_t num_decode_rows = 0;  // the first rows, of outputs, one a sequence; later ones are mostly of prompts

  const BatchOnDevice* on_device = nullptr;  // null: the CPU

  int64_t num_rows() const {  // computed
    return on_device != nullptr ? on_device->num_rows : static_cast<int64_t>(tokens.size());
  }
  IntView token_ids() const { return on_device != nullptr ? on_device->tokens : IntView(tokens); }
  IntView table_rows() const { return on_device != nullptr ? on_device->rope_rows : IntView(rope_rows); }
  IntView wanted_rows() const { return on_device != nullptr ? on_device->logit_rows : IntView(logit_rows); }
  ops::SequenceBatch own_sequences() const {
    return on_device != nullptr ? on_device->sequences : ops::SequenceBatch(sequences);
  }
  int64_t num_own_rows() const {
    return sequences.empty() ? 0 : sequences.back().row_begin + sequences.back().num_query;
  }
  void Clear() {
    tokens.clear();
    rope_rows.clear();
    adapters.clear();
    sequences.clear();
    logit_rows.clear();
    num_decode_rows = 0;
    on_device = nullptr;
  }
};

}  // namespace switchyard::model
