#include "scheduler/offload/layer_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard {

OffloadShape ShapeOfBudget(int num_layers, int num_experts, int64_t budget_bytes, int64_t expert_bytes) {
  SY_CHECK_GT(expert_bytes, 0);
  const int64_t all = int64_t{num_layers} * num_experts;
  return {num_layers, num_experts, static_cast<int>(std::clamp<int64_t>(budget_bytes / expert_bytes, 0, all))};
}

std::string LayerPlan::ToString() const {
  static constexpr const char* kNames[] = {"copy ", "use ", "prefetch ", "drop "};
  std::string text;
  for (const PlanStep& step : steps) {
    const bool moves = step.kind == PlanStep::kCopy || step.kind == PlanStep::kPrefetch;
    absl::StrAppend(&text, text.empty() ? "" : " ", kNames[step.kind], step.key, moves ? ">" : "@", step.slot);
  }
  return text;
}

}  // namespace switchyard
