// For tests: a communicator whose n-th collective fails, comes late, or never comes.  Everything else is passed on.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "workers/comm/communicator.h"

namespace switchyard {

struct CommFault {
  enum class Kind { kNone, kFail, kDelay, kAbort, kWrongSequence };
  Kind kind = Kind::kNone;
  int64_t at_launch = 0;  // 0 = the first
  absl::Duration delay;   // of kDelay: slept before the launch
};

// Takes `inner`.
std::unique_ptr<Communicator> MakeFaultyCommunicator(std::unique_ptr<Communicator> inner, CommFault fault);

}  // namespace switchyard
