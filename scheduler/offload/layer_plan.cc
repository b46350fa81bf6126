#include "scheduler/offload/layer_plan.h"

#include "absl/strings/str_cat.h"

namespace switchyard::offload {

std::string LayerPlan::ToString() const {
  static constexpr const char* kNames[] = {"copy ", "use ", "prefetch ", "drop "};
  std::string text;
  for (const PlanStep& step : steps) {
    const bool moves = step.kind == PlanStep::kCopy || step.kind == PlanStep::kPrefetch;
    absl::StrAppend(&text, text.empty() ? "" : " ", kNames[step.kind], step.key, moves ? ">" : "@", step.slot);
  }
  return text;
}

}  // namespace switchyard::offload
