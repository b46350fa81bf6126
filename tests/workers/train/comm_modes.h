// All modes of communication, for tests that run in each.
#pragma once

#include <vector>

#include "scheduler/jobs/comm_spec.h"

namespace switchyard {

inline std::vector<CommMode> AllCommModes() {
  std::vector<CommMode> modes;
  for (int i = 0; i < kNumCommModes; ++i) modes.push_back(static_cast<CommMode>(i));
  return modes;
}

}  // namespace switchyard
