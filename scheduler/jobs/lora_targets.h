// The matrices that a job's adapters may be for (LoraSpec::targets), by PEFT's names.
//
// Those of experts are PEFT's target_parameters: gate and up of an expert are one matrix.  Those of attention
// (kLoraTargets) are its target_modules, and the default.  Pure.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::jobs {

inline constexpr const char* kExpertLoraTargets[] = {"gate_up_proj", "down_proj"};

inline bool IsExpertTarget(absl::string_view target) {
  return std::find(std::begin(kExpertLoraTargets), std::end(kExpertLoraTargets), target) !=
         std::end(kExpertLoraTargets);
}

inline bool AdaptsExperts(const LoraSpec& lora) {
  return std::any_of(lora.targets.begin(), lora.targets.end(),
                     [](const std::string& target) { return IsExpertTarget(target); });
}

}  // namespace switchyard::jobs
