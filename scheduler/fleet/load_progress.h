// How far a worker has come with its assignment, before it is ready.  Plain data; proto/link/fleet_codec.h is its form
// on the wire.
#pragma once

#include <cstdint>

namespace switchyard::fleet {

// In the order in which a worker goes through them.
enum class LoadPhase : uint8_t {
  kWeights,  // reads the checkpoint, or makes the machine's expert file
  kExperts,  // copies experts into the slots of a placement or a budget
  kGraphs,   // captures graphs, with the other ranks
};

struct LoadProgress {
  int64_t epoch = 0;
  LoadPhase phase = LoadPhase::kWeights;
  int64_t done = 0;  // bytes, or graphs; a phase may count more than once, each time from 0
  int64_t total = 0;

  bool operator==(const LoadProgress& other) const = default;
};

}  // namespace switchyard::fleet
