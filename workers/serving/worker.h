// A worker without its network: the model, its place in a group, and the steps that it runs.
//
//   Open (checks the checkpoint, loads nothing) → Join (loads what its assignment holds, forms the group) →
//   Start, Finish, Start, … → Leave
//
// Join, Start, Finish and Leave belong to one thread, the worker's; Abort and PutMasks may come from any thread.  Abort
// ends waits for a peer or for masks.  Weights stay loaded between epochs: a survivor that keeps its assignment joins
// in milliseconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/base/env.h"
#include "scheduler/batching/step.h"
#include "scheduler/fleet/adapter_list.h"
#include "scheduler/fleet/engine_settings.h"
#include "scheduler/fleet/group_ready.h"
#include "scheduler/fleet/load_progress.h"
#include "scheduler/fleet/rank_assignment.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/epoch_group.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/model/config/config.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/forward/model.h"
#include "workers/model/runner/mask_inbox.h"
#include "workers/model/runner/model_runner.h"
#include "workers/model/weights/loader.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/serving/device_setup.h"
#include "workers/serving/memory_budget.h"
#include "workers/serving/rank_adapters.h"
#include "workers/serving/rank_experts.h"
#include "workers/serving/rank_experts_in_place.h"
#include "workers/serving/rank_load_predictor.h"
#include "workers/serving/rank_placement.h"
#include "workers/serving/shared_weights.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/machine_memory.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::worker {

struct WorkerOptions {
  std::string model_dir;
  std::string adapter_dir;                         // low-rank adapters that are merged into the weights; "" = none
  std::vector<fleet::AdapterPlace> adapters = {};  // those that requests choose from; on the CPU, without adapter_dir
  std::string dtype = "auto";                      // or fp32, bf16, fp16, fp64
  std::string quantization = "auto";               // of matrices: as the checkpoint has them; or none, int8, int4
  std::string kv_cache_dtype = "auto";             // of keys and values: the dtype; or int8, fp8
  int threads = 1;
  Device device = Device::Cpu();
  double gpu_memory_fraction = 0.9;  // of a device's memory that may be in use: kGpuMemoryFractionHelp
  bool deterministic = false;        // on a device: a row's bits do not depend on other rows; the CPU's never do
  bool graphs = true;                // on a device: record and replay steps of decodes
  bool dummy_weights = false;        // random ones, of the config's shapes
  // Empty: every expert of the rank is resident.  Directory and rate are a placement's, too.
  offload::ExpertBudgetOptions experts;
  ForecastOptions forecast;                       // of what coming layers' experts get
  FormDeviceGroupFn form_device_group = nullptr;  // for a device and several ranks
  std::function<MachineMemory()> memory = [] { return ReadMachineMemory(); };
};

class Worker final {
 public:
  // Called several times a second while weights load and experts are copied, and for each graph; false stops.
  using Progress = absl::AnyInvocable<bool(const fleet::LoadProgress& progress)>;

  // Reads config and headers.  Errors are the model's (InvalidArgument, NotFound, Unimplemented …) or the options'.
  static absl::StatusOr<std::unique_ptr<Worker>> Open(WorkerOptions options);
  ~Worker();

  const model::ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  ops::KvFormat kv_format() const { return kv_format_; }
  int64_t kv_bytes_per_token() const { return model::KvBytesPerToken(config_, dtype_, kv_format_); }
  ops::WeightType weight_type() const { return {dtype_, format_}; }
  int threads() const { return options_.threads; }
  Device device() const { return options_.device; }
  // The property that decides bits, as ranks compare it: the CPU's instruction set, or the device's kind.
  std::string isa() const;
  // Memory that weights and cache may take: the machine's or the device's.
  int64_t memory_bytes() const;
  const std::string& weights_hash() const { return weights_hash_; }
  std::vector<std::string> adapter_names() const { return adapters_.names(); }  // that requests choose from
  const offload::ExpertBudgetOptions& expert_budget() const { return expert_budget_; }

  // Takes the assignment: loads weights if this assignment's are not there, makes the KV cache, meets the others, and
  // captures graphs with them.
  // Its placement is not checked against the model yet.  address: of this host, where the other ranks reach it. Blocks.
  //   Unavailable/Aborted: the group did not form (others' fault; wait for the next assignment).  Cancelled: progress
  //   stopped it.  Others: this worker cannot serve.
  absl::Status Join(const fleet::RankAssignment& assignment, const std::string& address,
                    const fleet::EngineSettings& settings, comm::RendezvousStore* store, Progress progress);
  int32_t num_kv_blocks() const { return runner_->num_blocks(); }
  int64_t weight_bytes() const { return weight_bytes_; }
  // Of these, those that other workers of the machine hold in the same memory.
  int64_t shared_weight_bytes() const { return shared_weights_ == nullptr ? 0 : shared_weights_->bytes(); }
  int64_t device_bytes() const;  // of a device's memory, held by this process; 0 on the CPU
  // Counts of an expert budget's copies since the assignment was taken; none without one.
  moe::ExpertOffloadCounters expert_counters() const;
  // Counts of a budget's experts that the host computed, likewise.
  moe::ColdCounters cold_counters() const;
  // Makes the machine's file of packed experts for --expert_memory, unless it is there; blocks.  Returns what was done,
  // in words, with the file's path.  In no group.  Errors: InvalidArgument (no experts), the file's, the loader's.
  absl::StatusOr<std::string> PackExperts(moe::ExpertFile::Progress progress);
  // Writes what the load predictor has learned where the options say so; OK if there is nothing to write.  In no group.
  absl::Status SaveProfile();
  // Whether this worker can compute any expert, in this group, from the machine's memory.
  bool experts_in_place() const { return in_place_ != nullptr && in_place_->all_experts() != nullptr; }
  // The group's links, on CPUs with experts; else not measured.
  const fleet::LinkFit& links() const { return links_; }
  // The time of a placement's copies; null without one.
  const moe::TimedCopier* copier() const { return placement_ == nullptr ? nullptr : &placement_->copier(); }
  // The group's balancer where experts move; null otherwise.  The worker's thread only.
  const moe::PerStepBalancer* balancer() const { return placement_ == nullptr ? nullptr : placement_->balancer(); }
  // The predictor of what coming layers get; null: there is none.  The worker's thread only.
  const moe::RowLoadPredictor* load_predictor() const { return load_predictor_.get(); }
  // Counts of captured and replayed steps, by all caches that there have been.
  model::GraphCounters graph_counters() const;
  int64_t num_replayed() const { return graph_counters().replayed; }

  // One step in two halves; both may block, for the other ranks or for masks at most `limit`.  The next step may be
  // started before this one is finished (ModelRunner).  An error ends the epoch for this rank: Leave follows.
  absl::Status Start(const batching::StepPlan& head, const batching::RankPlan& part, absl::Duration limit);
  absl::StatusOr<batching::RankResult> Finish();
  int num_started() const { return runner_ == nullptr ? 0 : runner_->num_started(); }
  bool can_start() const { return num_started() < model::ModelRunner::kMaxStarted; }
  // Whether Finish would not wait.  An error counts as done, and so does a deadline that has passed: Finish reports it.
  bool IsDone();
  // Whether the device is lost to this process, which then has to end, so that another is started.
  bool device_lost() const { return queue_ != nullptr && queue_->IsLost(); }
  // Drops the group; the weights stay.
  void Leave();
  // Counts of the copies that a placement asked for; none without one.
  moe::ReplicatedExpertsCounters placement_counters() const {
    return placement_ == nullptr ? moe::ReplicatedExpertsCounters() : placement_->counters();
  }
  // Ends the communication of that epoch, now or when it forms, and waits for its masks.  Any thread.
  void Abort(int64_t epoch, const std::string& reason) {
    group_.Abort(epoch, reason);
    masks_.Abort(epoch, reason);
  }
  // Masks of a step that is started, or will be.  Any thread; never blocks.
  void PutMasks(int64_t epoch, int64_t step, batching::RankMasks masks) { masks_.Put(epoch, step, std::move(masks)); }
  // All epochs so far are forgotten: a new link, perhaps to a server that counts anew.  In no group.
  void ForgetEpochs() {
    group_.ForgetEpochs();
    masks_.ForgetEpochs();
  }

 private:
  Worker(WorkerOptions options, model::ModelConfig config, std::optional<checkpoint::Checkpoint> checkpoint);
  absl::Status OpenDevice();
  // A step that is observed while it runs cannot be recorded, nor one that the host plans layer by layer.
  bool uses_graphs() const {
    return options_.graphs && expert_budget_.empty() && !ForecastsAnyway(options_.forecast) &&
           !EnvBool("SY_SYNC_OPS") && !EnvBool("SY_CHECK_NAN");
  }
  Stream stream();
  // Join's progress, in its epoch.
  using Report = absl::FunctionRef<bool(fleet::LoadPhase phase, int64_t done, int64_t total)>;
  absl::StatusOr<model::ModelWeights> MakeWeights(const fleet::RankAssignment& assignment,
                                                  const fleet::EngineSettings& settings, Report report);
  // Whether what this assignment holds is loaded.
  bool HasLoaded(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings) const;
  // Whether this group's workers have their experts in place.
  absl::StatusOr<bool> WantsInPlace(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings,
                                    comm::RendezvousStore* store) const;
  absl::Status Unload();
  // The machine's expert file, if it is open and turned out to be damaged; null otherwise.
  const moe::ExpertFile* DamagedFile() const;
  RankPlacementInput PlacementInput(const fleet::RankAssignment& assignment,
                                    const fleet::EngineSettings& settings) const;
  // The memory that the assignment needs on the device.
  absl::StatusOr<model::MemoryNeed> NeedOf(const fleet::RankAssignment& assignment,
                                           const fleet::EngineSettings& settings) const;
  // budget_, with the ranks that share this host's memory.
  absl::Status AgreeOnBudget(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings,
                             comm::RendezvousStore* store);
  // Adds those of the file with all experts to expert_sums_, by layer.
  void SumExpertFile(const moe::ExpertFile& file);
  absl::Status CheckPlacement(const placement::PlacementSettings& placement, int world) const;
  // available: bytes of the host's memory that, if it is built in memory, the file may take.
  RankExpertFileInput ExpertFileInput(int64_t available) const;
  // The shares that an expert budget's slots begin with: by what was learned in a group before, else by --profile;
  // empty: nothing is known.
  absl::StatusOr<std::vector<int64_t>> KnownPopularity() const;
  absl::StatusOr<std::unique_ptr<comm::Communicator>> FormGroup(const fleet::RankAssignment& assignment,
                                                                const std::string& address,
                                                                comm::RendezvousStore* store);
  absl::Status Load(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings, Report report);
  absl::Status MakeRunner(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings);
  // limit: ModelRunner::CaptureGraphs'.
  absl::Status CaptureGraphs(absl::Duration limit, Report report);
  // load_predictor_ and the runner's, where somebody uses it.
  absl::Status MakeLoadPredictor(const fleet::EngineSettings& settings);
  // What weights, scratch and cache may still take of the device's memory: whatever is in use already, whoever uses it,
  // counts.
  absl::StatusOr<MemoryPool> DeviceMemory() const;
  absl::StatusOr<int64_t> KvBytes(const fleet::EngineSettings& settings, int64_t context) const;

  const WorkerOptions options_;
  const model::ModelConfig config_;
  const std::optional<checkpoint::Checkpoint> checkpoint_;  // none for dummy weights
  std::unique_ptr<const checkpoint::LoraAdapter> adapter_;  // null: none
  RankAdapters adapters_;
  DType dtype_ = DType::kF32;
  ops::WeightFormats format_;
  ops::KvFormat kv_format_ = ops::KvFormat::kPlain;
  std::string weights_hash_;
  ThreadPool pool_;
  std::unique_ptr<DeviceQueue> queue_;  // null on the CPU
  int64_t weight_bytes_ = 0;
  model::TensorSums weight_sums_;  // of what all ranks have
  model::TensorSums expert_sums_;  // by layer, of the expert file where there is one
  MemoryBudget budget_;            // of the host's memory, since the assignment was taken
  // The options', with what an automatic one came to since the assignment was taken.
  offload::ExpertBudgetOptions expert_budget_;
  int loaded_rank_ = -1;
  int loaded_world_ = 0;
  fleet::EngineSettings loaded_settings_;
  std::unique_ptr<RankExperts> experts_;          // null without a budget; the model borrows it
  std::unique_ptr<RankPlacement> placement_;      // null without slots for replicas; the model and the runner borrow it
  bool wants_in_place_ = false;                   // this group
  std::unique_ptr<RankExpertsInPlace> in_place_;  // null where they are not; the model and the runner borrow it
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<SharedWeights> shared_weights_;          // borrows the model's; null: it is not a host's
  std::optional<moe::Learned> learned_;                    // by the load predictor before, until there is another
  std::unique_ptr<moe::RowLoadPredictor> load_predictor_;  // borrows the model's routers, given away to the runner
  model::MaskInbox masks_;                                 // the runner borrows it
  std::unique_ptr<model::ModelRunner> runner_;
  model::GraphCounters graphs_before_;  // of the runners before
  fleet::LinkFit links_;                // of the last group
  moe::ExpertLayout layout_;            // the runner borrows it
  comm::EpochGroup group_;              // formed and left by the worker's thread only
};

}  // namespace switchyard::worker
