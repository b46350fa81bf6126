// Runs of the test model's layer on any number of ranks: what to vary, and what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/fake_copier.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/cold_experts.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/tensor/tensor.h"

namespace switchyard::test {

// How rows move between ranks.
enum class ExchangeKind { kHost, kDeviceExact, kPadded };
inline constexpr ExchangeKind kExchangeKinds[] = {ExchangeKind::kHost, ExchangeKind::kDeviceExact,
                                                  ExchangeKind::kPadded};
std::string ExchangeName(ExchangeKind kind);
// For an executor that moves rows in this way.
moe::MoeExecutor::DispatcherMaker MakerOf(ExchangeKind kind);
moe::ExchangeMode ModeOf(ExchangeKind kind);

struct MoeRun {
  Backend backend = Backend::kLocal;
  moe::ExpertLayout layout;        // the run has as many ranks
  std::vector<int64_t> rank_rows;  // [R] how many each rank computes, in order
  int micro_batches = 1;
  ExchangeKind exchange = ExchangeKind::kHost;
  bool balanced = false;  // a load balancer splits the rows over the replicas, by counts
  int expert_slots = 0;   // of each rank's expert store; 0 = all experts are resident
  std::function<std::unique_ptr<offload::CachePolicy>(const offload::OffloadShape&)> policy = nullptr;  // of that store
  CopyScript* copies = nullptr;  // delays and faults of the store's copies; null = none
  // >= 0: experts in no slot may run on the host.  The cost model says that a copy takes this many seconds, and an
  // expert's rows on the host one second.
  double cold_price = -1;
  placement::ExpertCost pace = {};  // of MoeContext
  bool add_outputs = false;         // likewise
  int64_t max_rows() const;         // a little more than any rank has, so that bounds are never the counts
};

struct MoeResult {
  std::string residual;                             // bytes of [T, H] in the order of the rows
  std::vector<moe::MoeStats> stats;                 // [R]
  std::vector<uint64_t> ledgers;                    // [R]
  std::vector<moe::ExpertStoreCounters> copies;     // [R] of the stores
  std::vector<int64_t> waves;                       // [R]
  std::vector<moe::ColdCounters> cold;              // [R]
  std::vector<std::vector<int64_t>> expert_counts;  // [R][repeats * E] choices of the rank's rows
};

// One rank's part of RunMoe, on the stream's device.
// REQUIRES: result->residual holds all rows, and the vectors that this run fills have an element for each rank.
absl::Status RunMoeRank(const MoeTestModel& model, const MoeRun& run, comm::Communicator* comm, const Stream& stream,
                        const TensorView& x, int repeats, MoeResult* result);

// Runs the layer `repeats` times over the same rows, each time adding to the residual, with a thread for each rank.
absl::StatusOr<MoeResult> RunMoe(const MoeTestModel& model, const MoeRun& run, const TensorView& x,
                                 const TensorView& residual, int repeats = 1);

}  // namespace switchyard::test
