// Executes one rank's part of a StepPlan: slots, batch, forward pass, sampling → RankResult.
//
// A step is started and finished.  On the CPU Start does all of it.  On a device it enqueues the step, and the next one
// may be started before this one is finished, as what was sampled stays there; only steps that sample in ways that need
// the host (device_sampling.h) wait in Start.
//
// Owns the rank's slots and KV cache; borrows the model and, between SetGroup calls, the group.  Thread-compatible.
// Sampled tokens stay in the slot, so the next plan may be executed before the server has seen the result.
// Errors: Internal for a plan that does not fit the slots (nothing has changed then) or masks that do not fit the plan,
// Unimplemented (transfers of rows on a device), the communicator's, MaskInbox's.  After any error the epoch is over on
// this rank: SetGroup must follow.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/batching/step.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/model.h"
#include "workers/model/runner/device_steps.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/model/runner/mask_inbox.h"
#include "workers/model/runner/sequence_slots.h"
#include "workers/model/runner/token_rebalancer.h"
#include "workers/moe/placement/per_step_balancer.h"
#include "workers/moe/popularity/layer_load_predictor.h"
#include "workers/ops/sampling/sampling.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device.h"

namespace switchyard::model {

struct RunnerOptions {
  int32_t num_slots = 0;  // EngineOptions.max_num_seqs
  int32_t block_size = 16;
  // Asked once all else that the runner takes of the device is there; > 0.
  std::function<absl::StatusOr<int64_t>()> kv_cache_bytes;
  ops::KvFormat kv_format = ops::KvFormat::kPlain;
  bool touch_cache = false;  // take its memory at once
  int32_t max_rows = 0;      // EngineOptions.max_batched_tokens
  int64_t context = 0;       // positions that a sequence may have, at most model->max_positions()
  // On a device: record and replay steps of decodes in which no balancer decides.  Not with a load predictor, nor under
  // an expert budget.
  bool graphs = true;
  placement::ExpertCost pace = {};  // of MoeContext
  bool add_outputs = false;         // likewise
  MaskInbox* masks = nullptr;       // borrowed, of plans with masked items; null: these are refused
};

// The objects that decide over a group's layers beside its layout.  Borrowed; may be null.
struct LayerGuides {
  moe::PerStepBalancer* balancer = nullptr;           // where rows go
  moe::LayerLoadPredictor* load_predictor = nullptr;  // what coming layers get
  // All experts on one rank, where this rank can compute any expert (experts_in_place.h): in steps whose plan says so
  // each rank computes its own rows.
  const moe::ExpertLayout* all_experts = nullptr;
};

class ModelRunner {
 public:
  // Allocates the cache.  model: borrowed, outlives the runner.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(Model* model, const Stream& stream,
                                                             const RunnerOptions& options);

  // Begins an epoch with the group's communicator, expert layout and guides (borrowed until the next call); empties all
  // slots.  InvalidArgument: the layout's residents of this rank are not the model's; FailedPrecondition: a load
  // predictor, or a balancer that always decides, where steps are recorded.
  absl::Status SetGroup(comm::Communicator* comm, const moe::ExpertLayout* layout, const LayerGuides& guides = {});

  // Captures the graphs of steps of decodes, as many sizes of them as there is KV cache for on every rank: where steps
  // are recorded, else nothing.  Where a rank's device has no memory left for one it ends there.  Every rank calls it,
  // before the epoch's first step.  Calls progress before the first and after each.  Blocks, for the device and the
  // other ranks at most until `limit` after the last progress; who sees all ranks' progress limits the whole.
  // Cancelled: progress returned false.
  absl::Status CaptureGraphs(absl::Duration limit, absl::FunctionRef<bool(int64_t done, int64_t total)> progress);

  // Drops what is under way and what was recorded, before the group ends.
  void LeaveGroup();

  // Runs or enqueues this rank's part of the plan.  Where it samples masked items it waits for their masks.  Every rank
  // of the group must call it for every step, also with an empty part.  REQUIRES: SetGroup was called; num_started() <
  // kMaxStarted.
  absl::Status Start(const batching::StepPlan& plan, const batching::RankPlan& rank_plan, absl::Time deadline);
  static constexpr int kMaxStarted = DeviceSteps::kMaxUnderWay;
  int num_started() const { return static_cast<int>(started_.size()); }  // and not finished
  // Whether Finish would not wait.  REQUIRES: num_started() > 0.
  absl::StatusOr<bool> IsDone();
  // Returns the result of the oldest.  Waits at most until its deadline.  REQUIRES: num_started() > 0.
  absl::StatusOr<batching::RankResult> Finish();
  // Start and Finish.  REQUIRES: num_started() == 0.
  absl::StatusOr<batching::RankResult> Execute(const batching::StepPlan& plan, const batching::RankPlan& rank_plan,
                                               absl::Time deadline);

  int32_t num_blocks() const { return cache_.num_blocks(); }
  int64_t cache_bytes() const { return cache_.bytes(); }
  int64_t resident_cache_bytes() const { return cache_.ResidentBytes(); }
  const SequenceSlots& slots() const { return slots_; }
  // Null on the CPU.
  const DeviceSteps* device_steps() const { return device_steps_.get(); }

 private:
  // A token that a step under way samples.
  struct Pending {
    int32_t item = 0;
    batching::SlotId slot = 0;
    uint64_t generation = 0;
    int64_t position = 0;
  };
  struct Started {
    batching::RankResult result;
    absl::Time begin, deadline;
    int64_t epoch = 0, number = 0;      // of the plan
    std::vector<Pending> pending = {};  // in the order of the step's logit rows
    bool under_way = false;             // on the device
  };

  // The use of one row's logits.
  struct LogitUse {
    int32_t item = 0;     // of the plan
    bool sample = false;  // else: the logprobs of next_token, which follows the row
    int32_t next_token = 0;
  };

  ModelRunner(Model* model, const Stream& stream, KvCache cache, const SlotLimits& limits)
      : model_(model), stream_(stream), cache_(std::move(cache)), slots_(limits) {}

  absl::Status UseSchedule(int32_t micro_batches);
  // Whether the device samples of such logits at all.
  bool SamplesOnDevice() const;
  // Whether all that the plan samples can be sampled on the device.
  bool IsPlain(const batching::RankPlan& plan) const;
  absl::Status BeginGuides(const batching::StepPlan& plan);
  absl::Status RunNow(const batching::StepPlan& plan, const batching::RankPlan& rank_plan, Started* step);
  absl::Status Enqueue(const batching::StepPlan& plan, const batching::RankPlan& rank_plan, Started* step);
  // Internal: this rank's part of a plan of plain decodes has other items.
  absl::Status ValidateDecodes(const batching::StepPlan& plan, const batching::RankPlan& rank_plan) const;
  // DeviceSteps::Launch's most_decodes.
  int64_t MostDecodes(const batching::StepPlan& plan, const batching::RankPlan& rank_plan) const;
  absl::Status CollectOldest();
  moe::MoeContext ContextOf(absl::Time deadline, moe::MoeStats* stats) const;
  void BuildBatch(const batching::RankPlan& plan);
  void AddLogitRows(const batching::StepItem& item, int32_t item_idx, int64_t row_begin);
  // model_runner_sampling.cc
  absl::Status TakeLogits(const batching::RankPlan& plan, int64_t first, const TensorView& logits, Started* step);
  absl::Status Sample(const batching::RankPlan& plan, absl::Span<const LogitUse> uses, const TensorView& logits,
                      Started* step);
  // Waits for the step's masks, if it samples under any: item_masks_.
  absl::Status AwaitMasks(const batching::RankPlan& plan, Started* step);
  absl::Status ScorePrompt(const batching::RankPlan& plan, absl::Span<const LogitUse> uses, const TensorView& logits,
                           batching::RankResult* result);
  // Whether an item's experts are asked for.
  bool WantsPaths(const batching::RankPlan& plan) const;
  // Hands the rows' experts to the items that asked.
  absl::Status TakePaths(const batching::RankPlan& plan, const TensorView& topk_idx, Started* step);
  // Sets the result's fields from what the MoE layers did; moves from *stats.
  void TakeStats(moe::MoeStats* stats, batching::RankResult* result) const;
  // Returns `from` where the host can read it; the communicator's error first.
  absl::StatusOr<TensorView> OnHost(HostCopy* copy, const TensorView& from, absl::Time deadline);
  // Takes the MoE layers' counts of [L, E].
  absl::Status TakeCounts(const TensorView& counts, absl::Time deadline, std::vector<int64_t>* to);
  std::vector<int64_t> OfMoeLayers(absl::Span<const int32_t> counts) const;
  void Finalize(const batching::RankPlan& plan, batching::RankResult* result);

  Model* const model_;
  const Stream stream_;
  KvCache cache_;
  SequenceSlots slots_;
  comm::Communicator* comm_ = nullptr;
  const moe::ExpertLayout* layout_ = nullptr;
  LayerGuides guides_;
  const std::unique_ptr<comm::Communicator> alone_ = comm::MakeSoloCommunicator();  // of steps without exchanges
  placement::ExpertCost pace_;
  bool add_outputs_ = false;
  MaskInbox* masks_ = nullptr;
  pipeline::MoeSchedule schedule_;
  int32_t schedule_micro_batches_ = 0;  // what schedule_ was built for; 0 = not yet

  // The buffers of the step under way; kept for their capacity.
  Batch batch_;
  std::unique_ptr<DeviceSteps> device_steps_;  // null on the CPU
  bool records_steps_ = false;
  std::deque<Started> started_;
  std::vector<PlainRow> plain_rows_;
  TokenRebalancer rebalancing_;
  HostCopy logits_on_host_, counts_on_host_, paths_on_host_;  // of a device's steps that sample on the host
  std::vector<LogitUse> uses_;                                // of each of batch_.logit_rows
  batching::RankMasks step_masks_;
  std::vector<const grammar::TokenMask*>
      item_masks_;  // [items] into step_masks_, null for none; empty: not awaited yet
  std::vector<ops::SampleRequest> sample_requests_;
  std::vector<ops::SampleOutcome> outcomes_;
  std::vector<ops::LogprobRequest> logprob_requests_;
  std::vector<batching::PositionLogprobs> logprobs_;
  std::vector<batching::ItemStatus> statuses_;
};

}  // namespace switchyard::model
