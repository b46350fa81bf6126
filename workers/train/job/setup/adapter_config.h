// adapter_config.json of a checkpoint with adapters, as PEFT writes and reads it.  Pure.
#pragma once

#include <string>

#include "scheduler/jobs/job_spec.h"

namespace switchyard::train {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";

// REQUIRES: spec.lora.rank > 0.
std::string AdapterConfig(const jobs::JobSpec& spec);

}  // namespace switchyard::train
