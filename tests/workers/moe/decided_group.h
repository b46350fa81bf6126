// Groups of ranks whose layers go where decisions say, each rank a thread with slots, a load balancer and a
// communicator of its own: for comparing runs that must not differ, and for faults.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/fake_copier.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/placement/replicated_experts.h"

namespace switchyard::test {

inline constexpr int kPlacedLayers = 3, kReplicatedExperts = 12, kPlacedTopK = 2, kSpareSlots = 2;
inline constexpr int64_t kPlacedRows = 24, kPlacedSteps = 8;

// Faults of one rank's messages.
struct CommFaults {
  bool delays = false;          // each launch is late by something random
  int64_t corrupt_gather = -1;  // which of this rank's gathers
  int64_t corrupt_byte = 0;     // of rank 0's message
};

struct GroupRun {
  Backend backend = Backend::kLocal;
  placement::PlacementMode mode = placement::PlacementMode::kAgreed;
  std::vector<int64_t> rank_rows = {kPlacedRows};
  bool forecasts = true;
  bool delays = false;
  bool every_other_step = false;  // only those of odd numbers decide
  int micro_batches = 1;
  CommFaults faults = {};  // of the last rank
};

struct GroupResult {
  std::vector<absl::Status> statuses;  // [R]
  std::string residual;
  std::vector<moe::MoeStats> stats;                           // [R]
  std::vector<moe::ReplicatedExpertsCounters> counters;       // [R]
  std::vector<int64_t> gathers;                               // [R] that were begun
  std::vector<std::vector<placement::Placement>> placements;  // [R][L] at the end
  std::vector<std::array<int, placement::kNumSlotOrigins>>
      origins;  // [R] experts in slots at the end, by who put them there
};

class DecidedGroup {
 public:
  explicit DecidedGroup(DType dtype = DType::kBf16);

  GroupResult Run(const GroupRun& run) const;
  // The outputs that every run has to give.
  std::string Expected() const;

 private:
  absl::StatusOr<std::unique_ptr<moe::ReplicatedExperts>> MakeSlots(int num_slots, CopyScript* copies) const;
  absl::StatusOr<std::unique_ptr<moe::PerStepBalancer>> MakeBalancer(const GroupRun& run, int rank,
                                                                     moe::ReplicatedExperts* slots) const;
  absl::Status RunRank(const GroupRun& run, comm::Communicator* comm, GroupResult* result) const;
  const char* Packed(int layer, int expert) const {
    return packed_[static_cast<size_t>(layer)].data() + expert * models_[0]->packed().bytes;
  }

  std::vector<std::unique_ptr<MoeTestModel>> models_;  // [L]
  std::vector<std::vector<char>> packed_;              // [L]
};

// So many rows on each of 1 to 4 ranks, kPlacedRows in all.
std::vector<int64_t> RowsOf(int world);

}  // namespace switchyard::test
