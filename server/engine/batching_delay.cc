#include "server/engine/batching_delay.h"

#include <algorithm>

namespace switchyard::server {
namespace {

constexpr int64_t kLeastRows = 64;  // of a step that tells what a prompt's row costs
constexpr int kRecent = 8;          // steps in the mean
constexpr int kShare = 100;         // the wait is the step's expected time divided by this
constexpr absl::Duration kLongest = absl::Milliseconds(2);

}  // namespace

void BatchingDelay::Observe(int64_t rows, absl::Duration duration) {
  if (rows < kLeastRows) return;
  const absl::Duration per_row = duration / rows;
  per_row_ = per_row_ == absl::ZeroDuration() ? per_row : per_row_ + (per_row - per_row_) / kRecent;
}

absl::Time BatchingDelay::OpensAt(int64_t waiting_tokens, int64_t step_tokens, absl::Time now) {
  since_ = std::min(since_, now);
  if (waiting_tokens >= step_tokens) return now;
  return since_ + std::min(kLongest, per_row_ * waiting_tokens / kShare);
}

}  // namespace switchyard::server
