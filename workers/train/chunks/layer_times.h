// Finds the number of chunks with which MoE layers are fastest, by running some: before a job's first step all ranks
// run them forward and backward with each number in turn, for about two seconds, or one round that counts where that
// takes ten seconds.  The slowest rank counts, so that all find the same.
//
// This takes the place of MPMoE's performance model (section III-D, scheduler/PAPERS.md), whose inputs, what
// all-to-alls and products lose beside each other, came out between 0.26 and 0.95 on the same two cores.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {

// Runs the layers with so many chunks on this rank; collective.
using RunLayersFn = std::function<absl::Status(int32_t chunks)>;

struct ChunkTime {
  int32_t chunks = 1;
  double seconds = 0;  // of forward and backward on the slowest rank
};

struct LayerTimesInput {
  comm::Communicator* comm = nullptr;  // of all ranks
  int32_t most = 8;                    // chunks; of powers of two
  RunLayersFn run;
  absl::Duration limit;  // of each exchange
};

// Medians over rounds, from the fewest chunks to the most; the same on all ranks.  Collective; blocks.  Errors: the
// communicator's, run's.
absl::StatusOr<std::vector<ChunkTime>> MeasureLayers(const LayerTimesInput& input);

// the fewest chunks whose time is at most half a percent over the least.  REQUIRES: times are not empty.
ChunkTime FastestOf(const std::vector<ChunkTime>& times);

// "1 chunk 12.1 ms, 2 chunks 10.2 ms"
std::string ChunkTimesText(const std::vector<ChunkTime>& times);

}  // namespace switchyard::train
