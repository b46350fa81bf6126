// For tests: a communicator whose n-th launch fails, comes late, or goes out as another op.  All else is passed on.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "workers/comm/communicator.h"

namespace switchyard {

struct CommFault {
  enum class Kind : uint8_t { kNone, kFail, kDelay, kWrongOp };
  Kind kind = Kind::kNone;
  int64_t at_launch = 0;  // 0 = the first exchange that this rank starts
  absl::Duration delay;   // of kDelay: slept before the launch
};

// Takes `inner`.  Thread-compatible.
std::unique_ptr<Communicator> MakeFaultyCommunicator(std::unique_ptr<Communicator> inner, CommFault fault);

}  // namespace switchyard
