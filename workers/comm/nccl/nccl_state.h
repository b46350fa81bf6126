// The life of an NCCL communicator, as a table.  Plain values.
#pragma once

#include <cstdint>

#include "scheduler/base/check.h"

namespace switchyard::comm {

enum class NcclState : uint8_t {
  kForming,  // NCCL connects its ranks; nothing is launched
  kReady,
  kFailed,   // the first error is known and sticky, every waiter on the host is free; NCCL is still to be aborted
  kAborted,  // NCCL has let go of the device, and the streams run on: what they hold is worth nothing
  kClosed,   // ended with nothing under way
};
inline constexpr int kNumNcclStates = 5;

//                                                    Forming Ready  Failed Aborted Closed
inline constexpr bool kMayMove[kNumNcclStates][kNumNcclStates] = {
    {false, true, true, false, false},     // Forming
    {false, false, true, false, true},     // Ready
    {false, false, false, true, false},    // Failed
    {false, false, false, false, false},   // Aborted: the end
    {false, false, false, false, false}};  // Closed: the end

constexpr bool MayMove(NcclState from, NcclState to) { return kMayMove[static_cast<int>(from)][static_cast<int>(to)]; }
static_assert(!MayMove(NcclState::kReady, NcclState::kAborted), "nothing frees a stream before the error is sticky");
static_assert(!MayMove(NcclState::kFailed, NcclState::kReady), "a new epoch is a new communicator");
static_assert(!MayMove(NcclState::kForming, NcclState::kClosed), "what is not connected does not end in order");

inline void MoveTo(NcclState* state, NcclState to) {
  SY_CHECK(MayMove(*state, to));
  *state = to;
}

}  // namespace switchyard::comm
