#include "tests/lab/offload/choose_offload.h"

#include <limits>

#include "absl/strings/str_format.h"
#include "scheduler/offload/policies/expected_use_policy.h"
#include "tests/lab/offload/greedy_policy.h"

namespace switchyard {
namespace {

// Hundredths of the best baseline's stall that ours may have: what is as good by a hair on one text is not on the next.
constexpr int64_t kNoMoreThan = 98;

}  // namespace

std::unique_ptr<offload::CachePolicy> MakeOffloadPolicy(OffloadVariant variant, const offload::OffloadShape& shape,
                                                        const offload::CopyCost& cost,
                                                        absl::Span<const int64_t> popularity,
                                                        const OffloadWorkload& history) {
  std::unique_ptr<offload::CachePolicy> policy;
  if (variant.served()) {
    policy = offload::MakeCachePolicy(variant.kind, {.shape = shape, .cost = cost, .popularity = popularity});
  } else if (variant.kind == offload::OffloadKind::kExpectedUse) {
    policy = std::make_unique<offload::ExpectedUsePolicy>(
        shape, cost, offload::ExpectedUsePolicy::Options{.prefetch_ahead = 0}, popularity);
  } else {
    using Rule = offload::RulePolicy::Rule;
    const GreedyPolicy::Options options = {.rule = variant.kind == offload::OffloadKind::kLru ? Rule::kLru : Rule::kLfu,
                                           .per_layer = shape.num_slots >= shape.num_layers};
    policy = std::make_unique<GreedyPolicy>(shape, options, popularity);
  }
  for (const OffloadStep& step : history.steps) policy->Learn({step.layer, step.rows, 0});
  return policy;
}

OffloadChoice ChooseOffload(const OffloadWorkload& fit, const OffloadRun& run, absl::Span<const int64_t> popularity) {
  OffloadChoice choice;
  const offload::OffloadShape shape = {fit.num_layers, fit.num_experts, run.num_slots};
  const OffloadWorkload nothing = {fit.num_layers, fit.num_experts, 0, {}};
  // Ticks above all resident of the best of ours and of the best baseline.
  int64_t least[2] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  size_t best[2] = {};
  for (const OffloadVariant variant : kOffloadVariants) {
    const std::unique_ptr<offload::CachePolicy> policy =
        MakeOffloadPolicy(variant, shape, run.cost, popularity, nothing);
    const OffloadResult result = RunOffload(fit, run, policy.get());
    choice.tried.push_back({std::string(policy->name()), result.relative_rate()});
    const bool baseline = variant.kind != offload::OffloadKind::kExpectedUse;
    const int64_t stall = result.ticks - result.resident_ticks;
    if (stall >= least[baseline]) continue;
    least[baseline] = stall;
    best[baseline] = choice.tried.size() - 1;
  }
  const size_t chosen = best[least[0] > least[1] / 100 * kNoMoreThan];
  choice.variant = kOffloadVariants[chosen];
  choice.name = choice.tried[chosen].name;
  return choice;
}

std::string OffloadChoice::ToString() const {
  std::string text = absl::StrFormat("%s:", name);
  for (const Tried& one : tried) absl::StrAppendFormat(&text, " %s %.3f", one.name, one.relative_rate);
  return text;
}

}  // namespace switchyard
