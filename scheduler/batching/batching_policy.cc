#include "scheduler/batching/batching_policy.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace switchyard::batching {

absl::Status BatchingPolicy::Validate() const {
  std::vector<std::string> problems;
  const auto at_least = [&problems](absl::string_view name, int64_t value, int64_t least) {
    if (value < least) problems.push_back(absl::StrCat("batching: ", name, "=", value, " must be at least ", least));
  };
  at_least("max_num_seqs", max_num_seqs, 1);
  at_least("max_batched_tokens", max_batched_tokens, 1);
  at_least("prefill_chunk", prefill_chunk, 0);
  at_least("block_size", block_size, 1);
  at_least("max_model_len", max_model_len, 2);
  at_least("max_queue", max_queue, 1);
  at_least("max_queued_tokens", max_queued_tokens, 1);
  at_least("max_choices", max_choices, 1);
  at_least("max_prefix_imbalance", max_prefix_imbalance, 0);
  at_least("min_rebalance_rows", min_rebalance_rows, -1);
  at_least("max_in_flight", max_in_flight, 1);
  at_least("max_losses", max_losses, 0);
  at_least("mask_work_at_once", mask_work_at_once, 0);
  if (max_batched_tokens < max_num_seqs) {
    problems.push_back(absl::StrCat("batching: max_batched_tokens=", max_batched_tokens,
                                    " must be at least max_num_seqs=", max_num_seqs,
                                    ", so that every running sequence can decode in each step"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace switchyard::batching
