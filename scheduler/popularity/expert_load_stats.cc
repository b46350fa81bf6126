#include "scheduler/popularity/expert_load_stats.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::popularity {

ExpertLoadStats::ExpertLoadStats(const RoutingShape& shape, int64_t halve_after_tokens)
    : shape_(shape), halve_after_tokens_(halve_after_tokens) {
  SY_CHECK_GE(shape.num_layers, 1);
  SY_CHECK_GE(shape.num_experts, 1);
  SY_CHECK_GE(shape.top_k, 1);
  SY_CHECK_GE(halve_after_tokens, 1);
  for (PhaseCounts& phase : phases_) phase.counts.assign(static_cast<size_t>(shape.num_layers) * shape.num_experts, 0);
}

absl::Status ExpertLoadStats::Add(Phase phase, absl::Span<const int64_t> counts) {
  PhaseCounts& to = phases_[static_cast<size_t>(phase)];
  if (counts.size() != to.counts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("expert_census: ", counts.size(), " counts, expected ",
                                                   shape_.num_layers, " layers of ", shape_.num_experts));
  }
  const auto width = static_cast<size_t>(shape_.num_experts);
  int64_t rows = 0;
  for (size_t layer = 0; layer * width < counts.size(); ++layer) {
    const absl::Span<const int64_t> of_layer = counts.subspan(layer * width, width);
    const auto wrong =
        std::find_if(of_layer.begin(), of_layer.end(), [](int64_t count) { return count < 0 || count > kMaxCount; });
    if (wrong != of_layer.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expert_census: layer ", layer, " has ", *wrong, " rows for expert ", wrong - of_layer.begin()));
    }
    const int64_t sum = std::accumulate(of_layer.begin(), of_layer.end(), int64_t{0});
    if (layer > 0 && sum != rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("expert_census: layer ", layer, " has ", sum, " rows, layer 0 has ", rows));
    }
    rows = sum;
  }
  const int64_t tokens = rows / shape_.top_k;
  for (size_t i = 0; i < counts.size(); ++i) to.counts[i] += counts[i];
  to.tokens += tokens;
  to.since_halving += tokens;
  const int64_t halvings = std::min<int64_t>(to.since_halving / halve_after_tokens_, 62);
  to.since_halving %= halve_after_tokens_;
  for (int64_t& count : to.counts) count >>= halvings;
  to.tokens >>= halvings;
  return absl::OkStatus();
}

absl::Span<const int64_t> ExpertLoadStats::Counts(Phase phase, int layer) const {
  const auto width = static_cast<size_t>(shape_.num_experts);
  return absl::MakeConstSpan(of(phase).counts).subspan(static_cast<size_t>(layer) * width, width);
}

double BusiestOverMean(absl::Span<const int64_t> counts) {
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (sum == 0) return 0;
  const auto busiest = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  return busiest * static_cast<double>(counts.size()) / static_cast<double>(sum);
}

}  // namespace switchyard::popularity
