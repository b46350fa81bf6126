// All modes of communication, for tests that run in each.
#pragma once

#include <vector>

#include "scheduler/jobs/comm_spec.h"

namespace switchyard::train {

inline std::vector<jobs::CommMode> AllCommModes() {
  std::vector<jobs::CommMode> modes;
  for (int i = 0; i < jobs::kNumCommModes; ++i) modes.push_back(static_cast<jobs::CommMode>(i));
  return modes;
}

}  // namespace switchyard::train
