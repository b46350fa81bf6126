// Counters of what socket groups have sent.  Thread-safe; numbers read at one time need not fit each other.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "workers/comm/core/op_key.h"

namespace switchyard::comm {

struct SocketTraffic {
  std::array<std::atomic<int64_t>, kNumCommClasses> frames = {};  // by class, handed to the kernel whole
  std::array<std::atomic<int64_t>, kNumCommClasses> bytes = {};   // of them, headers of messages included
  // Messages that began while one of a later class (kSendOrder) had bytes left that could have gone.
  std::atomic<int64_t> overtaken = 0;
};

// A frame of an earlier class goes before one of a later.
inline constexpr std::array<CommClass, kNumCommClasses> kSendOrder = {CommClass::kControl, CommClass::kAllToAll,
                                                                      CommClass::kLayerSum, CommClass::kAllReduce};

}  // namespace switchyard::comm
