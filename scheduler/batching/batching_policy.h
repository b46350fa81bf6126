// The parameters of batching: those that a server chooses, which are validated once and then constant, and those that
// its group of workers brings.  Plain values.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace switchyard::batching {

struct BatchingPolicy {
  int32_t max_num_seqs = 64;            // running sequences per rank = its slots
  int32_t max_batched_tokens = 2048;    // rows of one step per rank; >= max_num_seqs
  int32_t prefill_chunk = 0;            // rows of one sequence in one step; 0 = what the step's budget leaves
  int32_t block_size = 16;              // tokens per KV block
  int32_t max_model_len = 4096;         // prompt + outputs of one sequence
  int32_t max_queue = 1024;             // requests with a choice in the queue; beyond it Submit refuses
  int64_t max_queued_tokens = 1 << 20;  // tokens of all queued choices (an empty queue takes any request)
  int32_t max_choices = 64;             // of one request
  bool prefix_reuse = true;
  // A rank attracts newcomers by the prefix it holds only while it runs at most this many sequences more than the least
  // loaded: else one shared system prompt would fill one rank and leave the others idle.
  int32_t max_prefix_imbalance = 8;
  // Fewest rows of a step that one rank computes for another (row_transfers.h); 0 = never, -1 = as the group says.
  int32_t min_rebalance_rows = -1;
  int32_t max_in_flight = 2;  // plans that are out at once
  // Losses of its group of workers that a running sequence outlives, to be computed again on the next; 0 = it ends with
  // the first.
  int32_t max_losses = 100;
  // Units of work (grammar::Matcher) that a call of Submit or Commit spends on masks; 40000 take some 0.2 ms.  Those
  // that need more are made elsewhere (Scheduler::TakeMaskRequests).
  int64_t mask_work_at_once = 40'000;
  bool preempt_every_step = false;  // verify mode: each Plan preempts someone that made progress; same answers

  // InvalidArgument that names field, value and limit of every problem, one a line.
  absl::Status Validate() const;
};

// A group of workers that is ready to take step 1, as far as batching depends on it.
struct GroupShape {
  int64_t epoch = 0;  // larger than any before
  int32_t num_ranks = 1;
  int32_t num_blocks = 0;  // of each rank's pool
  // The loss before it was not the work of a request: whoever ran then is no suspect for it.
  bool lost_from_outside = false;
  uint64_t weights_version = 0;
  uint64_t numerics =
      0;  // names what else decides the bits of a row; sequences with outputs go on under the same alone
  // longrope rotates the keys of longer prompts otherwise: they share no blocks with others.  0 = all are alike.
  int32_t long_rope_above = 0;
  bool may_give = true;            // false: these workers give away no rows, whatever the policy says
  int32_t expert_path_ids = 0;     // MoE layers x top_k: what a row's experts are, where they are asked for
  int32_t min_rebalance_rows = 0;  // what -1 in the policy stands for: from how many rows on transfers pay here

  bool IsLong(int64_t num_prompt_tokens) const { return long_rope_above > 0 && num_prompt_tokens > long_rope_above; }
};

}  // namespace switchyard::batching
