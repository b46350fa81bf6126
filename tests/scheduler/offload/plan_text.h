// A layer's plan as text: "copy 17>3 use 12@0 use 17@3 prefetch 40>0".
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/offload/layer_plan.h"

namespace switchyard::offload {

inline std::string TextOf(const LayerPlan& plan) {
  static constexpr const char* kKindNames[] = {"copy ", "use ", "prefetch ", "drop "};
  std::string text;
  for (const PlanStep& step : plan.steps) {
    const bool moves = step.kind == PlanStep::kCopy || step.kind == PlanStep::kPrefetch;
    absl::StrAppend(&text, text.empty() ? "" : " ", kKindNames[step.kind], step.key, moves ? ">" : "@", step.slot);
  }
  return text;
}

}  // namespace switchyard::offload
