// A communicator that makes its n-th launch fail, delays it or changes its op, or delays all launches.  All else is
// passed on.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

struct CommFault {
  enum class Kind : uint8_t { kNone, kFail, kDelay, kWrongOp, kJitter };
  Kind kind = Kind::kNone;
  int64_t at_launch = 0;  // 0 = the first exchange that this rank starts
  // Of kDelay: slept before the launch.  Of kJitter: at most, before each; drawn by the number of the launch and
  // at_launch.
  absl::Duration delay;
};

// Takes `inner`.  Threads: as for any Communicator.
std::unique_ptr<Communicator> MakeFaultyCommunicator(std::unique_ptr<Communicator> inner, CommFault fault);

}  // namespace switchyard::comm
