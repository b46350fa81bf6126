// A simulated serving worker: loads, forms a group with its peers through the rendezvous store, computes steps.
//
// Its tokens are those of token_model.h, from a cache of its own (rank_memory.h).  It may say again what it said of
// older epochs, as a zombie does: after its link has ended and begun anew, and just when a step of the same number
// runs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "scheduler/fleet/rank_assignment.h"
#include "tests/simulation/nodes/worker_process.h"
#include "tests/simulation/serving/fabric.h"
#include "tests/simulation/serving/rank_memory.h"

namespace switchyard::simulation {

// The data planes of all groups, by the group's secret.  They live as long as the world.
class Fabrics {
 public:
  explicit Fabrics(World* world) : world_(world) {}
  Fabric* Of(const std::string& token, int size) {
    std::unique_ptr<Fabric>& fabric = fabrics_[token];
    if (fabric == nullptr) fabric = std::make_unique<Fabric>(world_, size);
    return fabric.get();
  }

 private:
  World* const world_;
  std::map<std::string, std::unique_ptr<Fabric>> fabrics_;
};

class ServingWorker final : public WorkerProcess {
 public:
  struct Model {
    int32_t num_slots = 4, num_blocks = 40, block_size = 4, context = 64;
    absl::Duration load = absl::Milliseconds(100);
    absl::Duration step = absl::Microseconds(200);  // beside its rows
    bool says_again = false;                        // what a zombie says
  };
  ServingWorker(World* world, ServerProcess* server, Identity identity, Fabrics* fabrics, Model model)
      : WorkerProcess(world, server, std::move(identity)), fabrics_(*fabrics), model_(model) {}

 private:
  struct Plan {
    batching::StepPlan head;
    batching::RankPlan mine;
    absl::Duration limit;
  };
  void Describe(fleet::WorkerInfo* info) const override;
  void Take(const v1::LinkResponse& message) override;
  void BeginSession() override;
  void EndSession() override;

  void Join(const fleet::RankAssignment& assignment);
  void Load(uint64_t join, int part);
  void Meet(uint64_t join);
  void SayReady(uint64_t join);
  void RunNext();
  // Once the masks are there that it samples under.
  void Compute(Plan plan);
  void Finish(const Plan& plan, batching::RankResult result);
  void Fault(uint64_t join, const std::string& why);
  void LeaveGroup();
  void SayAgain();
  void SayLate(int64_t step);

  Fabrics& fabrics_;
  const Model model_;
  uint64_t loaded_by_ = 0;       // life that has loaded
  fleet::RankAssignment group_;  // epoch 0: none
  uint64_t join_ = 0;            // counts groups joined and left: what an earlier one began is void
  Fabric* fabric_ = nullptr;     // entered
  std::unique_ptr<RankMemory> memory_;
  std::deque<Plan> plans_;
  std::map<int64_t, batching::RankMasks> masks_;  // by step, until it is computed
  std::optional<Plan> awaits_masks_;
  bool busy_ = false;
  int64_t boots_ = 0;                        // of the server to which it said the following
  uint64_t said_by_ = 0;                     // life in which it did
  std::map<int64_t, v1::LinkRequest> late_;  // results that may come late, by step
  std::deque<v1::LinkRequest> said_;         // the last words of this process on steps and groups
};

}  // namespace switchyard::simulation
