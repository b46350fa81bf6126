// A group of workers, ready to take step 1, as far as batching depends on it.
#pragma once

#include <cstdint>

namespace switchyard::batching {

struct GroupShape {
  int64_t epoch = 0;  // larger than any before
  int32_t num_ranks = 1;
  int32_t num_blocks = 0;  // of each rank's pool
  uint64_t weights_version = 0;
  // longrope rotates the keys of a prompt of more tokens than this otherwise than those of any other sequence, so the
  // two share no blocks.  0 = all prompts are alike.
  int32_t long_rope_above = 0;
  bool may_give = true;         // false: these workers give away no rows, whatever the policy says
  int32_t expert_path_ids = 0;  // MoE layers x top_k: what a row's experts are, where they are asked for
  int32_t min_rebalance_rows =
      0;  // what policy.min_rebalance_rows = -1 stands for: from how many rows on transfers pay here

  bool IsLong(int64_t num_prompt_tokens) const { return long_rope_above > 0 && num_prompt_tokens > long_rope_above; }
};

}  // namespace switchyard::batching
