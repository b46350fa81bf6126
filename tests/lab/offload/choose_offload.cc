#include "tests/lab/offload/choose_offload.h"

#include <limits>

#include "absl/strings/str_format.h"

namespace switchyard {
namespace {

// Hundredths of the best baseline's stall that ours may have: what is as good by a hair on one text is not on the next.
constexpr int64_t kNoMoreThan = 98;

}  // namespace

std::unique_ptr<offload::CachePolicy> MakeOffloadPolicy(offload::OffloadKind kind, const offload::OffloadShape& shape,
                                                        const offload::CopyCost& cost,
                                                        absl::Span<const int64_t> popularity,
                                                        const OffloadWorkload& history) {
  std::unique_ptr<offload::CachePolicy> policy =
      offload::MakeCachePolicy(kind, {.shape = shape, .cost = cost, .popularity = popularity});
  for (const OffloadStep& step : history.steps) policy->Learn({step.layer, step.rows, 0});
  return policy;
}

OffloadChoice ChooseOffload(const OffloadWorkload& fit, const OffloadRun& run, absl::Span<const int64_t> popularity) {
  OffloadChoice choice;
  const offload::OffloadShape shape = {fit.num_layers, fit.num_experts, run.num_slots};
  const OffloadWorkload nothing = {fit.num_layers, fit.num_experts, 0, {}};
  // Ticks above all resident of the best of ours and of the best baseline.
  int64_t least[2] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  offload::OffloadKind best[2] = {};
  for (const offload::OffloadKind kind : offload::kOffloadKinds) {
    const std::unique_ptr<offload::CachePolicy> policy = MakeOffloadPolicy(kind, shape, run.cost, popularity, nothing);
    const OffloadResult result = RunOffload(fit, run, policy.get());
    choice.tried.push_back({std::string(policy->name()), result.relative_rate()});
    const bool baseline =
        kind != offload::OffloadKind::kExpectedUse && kind != offload::OffloadKind::kExpectedUseDemandOnly;
    const int64_t stall = result.ticks - result.resident_ticks;
    if (stall >= least[baseline]) continue;
    least[baseline] = stall;
    best[baseline] = kind;
  }
  choice.kind = best[least[0] > least[1] / 100 * kNoMoreThan];
  return choice;
}

std::string OffloadChoice::ToString() const {
  std::string text = absl::StrFormat("%s:", tried[static_cast<size_t>(kind)].name);
  for (const Tried& one : tried) absl::StrAppendFormat(&text, " %s %.3f", one.name, one.relative_rate);
  return text;
}

}  // namespace switchyard
