// A whole group of ranks in one process, each a thread with a model, a runner and a communicator of its own, driven by
// plans that this makes itself: for comparing runs that must not differ.  Or one rank of a group of processes, each of
// which makes the same plans (RankGroupOptions::only).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/batching/step.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/forward/model.h"
#include "workers/model/runner/model_runner.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/placement/replicated_experts.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {

struct RankGroupOptions {
  DType dtype = DType::kF32;
  ops::WeightFormats formats = {};  // in which matrices are held
  int world = 1;
  int threads = 1;  // of each rank
  int32_t block_size = 16;
  int32_t chunk = 512;  // most queries of one sequence in a step
  int32_t batch = 32;   // most sequences at a time, on all ranks together
  int32_t micro_batches = 1;
  int32_t min_rebalance_rows = 0;          // as in BatchingPolicy
  bool deterministic = true;               // of a device
  bool graphs = true;                      // of a device
  bool warm_up = false;                    // takes all scratch before the steps, as a worker on a device does
  bool capture = false;                    // graphs are captured before the first step
  int in_flight = 1;                       // steps that are started before the first of them is finished
  std::vector<std::string> adapters = {};  // folders of those that prompts choose from
  std::vector<int32_t> adapter_of = {};    // of each prompt, from 1; 0 or none: the model as it is; Logits: the first
  std::string merged_adapter = {};         // folder of one that is merged into the weights; "": none
  MaskInbox* masks = nullptr;              // of all ranks, borrowed
  std::function<void(ModelConfig*)> edit = {};  // changes the config before the weights are loaded: ablations
  // > 0: so many slots of each rank, over all layers, have its experts in turns, the least recently used one goes; with
  // a placement those that rows may come for.
  int expert_slots = 0;
  bool expert_prefetch = false;  // and what a load predictor says is likely is prefetched
  // Every rank has a load balancer of this mode and so many spare slots a layer; static: rows follow the layout.
  placement::PlacementMode placement = placement::PlacementMode::kStatic;
  int spare_slots = 1;
  bool every_other_step = false;  // only those of odd numbers decide
  placement::LayerCosts costs = {.copy_ps = 1, .row_ps = 1000};
  // Makes the load predictor of each rank; none: no rank forecasts.
  std::function<std::unique_ptr<moe::LayerLoadPredictor>(const Model& model)> load_predictor = {};
  // This process is this rank alone, on device 0; the others run elsewhere, with the same options but for this one, and
  // make the same calls.  Of `world` ranks; outlives the RankGroup.
  comm::Communicator* only = nullptr;
};

class RankGroup {
 public:
  // Aborts on errors: the checkpoint is a fixture.
  RankGroup(const std::string& dir, const RankGroupOptions& options);
  ~RankGroup();

  // Returns the tokens that greedy decoding appends to each prompt; with `only`, nothing to those of other ranks.
  std::vector<std::vector<int32_t>> Greedy(const std::vector<std::vector<int32_t>>& prompts, int32_t num_tokens);
  // The same where ranks may fail: the first error of a rank that is here, which has ended its steps then.
  absl::StatusOr<std::vector<std::vector<int32_t>>> TryGreedy(const std::vector<std::vector<int32_t>>& prompts,
                                                              int32_t num_tokens);
  // Logits of every position of one prompt, run on rank 0: [S * V]; with `only` on another rank, nothing.
  std::vector<double> Logits(const std::vector<int32_t>& tokens);

  const ModelConfig& config() const;
  ModelRunner& runner(int rank);                                               // REQUIRES: with `only`, that rank
  const batching::StepTimings& last_timings() const { return last_timings_; }  // of the first rank here
  int64_t rows_given() const { return rows_given_; }                           // in all
  const moe::ExpertOffload& offload(int rank) const;                           // REQUIRES: expert_slots > 0
  const moe::ReplicatedExperts& experts(int rank) const;  // REQUIRES: a placement but static, all slots
  const moe::PerStepBalancer& balancer(int rank) const;

 private:
  struct Rank;
  void AddRank(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config, int rank, comm::Communicator* comm);
  bool offloaded() const { return placed() || options_.expert_slots > 0; }
  bool placed() const { return options_.placement != placement::PlacementMode::kStatic; }
  bool keeps_homes() const { return options_.placement == placement::PlacementMode::kAuto; }
  // All experts of the model, packed.
  void LoadPacked(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config);
  std::function<const char*(int layer, int expert)> PackedSource(const ModelConfig& config) const;
  void MakeOffload(const ModelConfig& config, Rank* rank) const;
  // The placement that ranks begin with.
  placement::Placement SpareResidents(const ModelConfig& config) const;
  void MakeReplicatedExperts(const ModelConfig& config, Rank* rank) const;
  void MakeBalancer(const ModelConfig& config, Rank* rank) const;
  // Runs fn on a thread for every rank that is here.
  void OnRanks(const std::function<void(Rank*)>& fn);

  RankGroupOptions options_;
  moe::ExpertLayout layout_;
  Buffer packed_;  // [MoE layers, E] all experts, where they are brought to slots
  std::vector<std::unique_ptr<comm::Communicator>> comms_;  // empty with `only`
  std::vector<std::unique_ptr<Rank>> ranks_;                // those that are here
  batching::StepTimings last_timings_;
  int64_t rows_given_ = 0;
};

}  // namespace switchyard::model
