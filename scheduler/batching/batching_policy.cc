#include "scheduler/batching/batching_policy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

absl::Status AtLeast(absl::string_view name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batching: ", name, "=", value, " must be at least ", least));
}

}  // namespace

absl::Status BatchingPolicy::Validate() const {
  RETURN_IF_ERROR(AtLeast("max_num_seqs", max_num_seqs, 1));
  RETURN_IF_ERROR(AtLeast("max_batched_tokens", max_batched_tokens, 1));
  RETURN_IF_ERROR(AtLeast("prefill_chunk", prefill_chunk, 0));
  RETURN_IF_ERROR(AtLeast("block_size", block_size, 1));
  RETURN_IF_ERROR(AtLeast("max_model_len", max_model_len, 2));
  RETURN_IF_ERROR(AtLeast("max_queue", max_queue, 1));
  RETURN_IF_ERROR(AtLeast("max_queued_tokens", max_queued_tokens, 1));
  RETURN_IF_ERROR(AtLeast("max_choices", max_choices, 1));
  RETURN_IF_ERROR(AtLeast("max_prefix_imbalance", max_prefix_imbalance, 0));
  RETURN_IF_ERROR(AtLeast("min_loan_rows", min_loan_rows, -1));
  RETURN_IF_ERROR(AtLeast("max_in_flight", max_in_flight, 1));
  if (max_batched_tokens < max_num_seqs) {
    return absl::InvalidArgumentError(absl::StrCat("batching: max_batched_tokens=", max_batched_tokens,
                                                   " must be at least max_num_seqs=", max_num_seqs,
                                                   ", so that every running sequence can decode in each step"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard
