// Provides a rank's experts when its device holds a part of them: carries out a cache policy's plans with an expert
// store.
//
// The policy (scheduler/offload) plans each layer once its rows are known; layer_plan.h defines the plan's steps.
// Copies start when their slot's uses are over; experts compute in waves of those that the plan uses next and that are
// present, at least one.  The policy receives a forecast of coming layers (scheduler/offload/forecast/need_forecast.h)
// and does not learn of copies; late ones are waited for.  An expert's results do not depend on its wave.
//
// A start, of a group or of a pass after an error, begins with a policy without history.  Slots keep their experts, so
// that a start copies only what is missing. A layer in micro-batches is planned as their rows arrive: experts that a
// later one needs stay in their slots as far as known (this rank's own tokens), then those that an earlier one has
// used. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/offload/forecast/need_forecast.h"
#include "scheduler/offload/layer_plan.h"
#include "scheduler/offload/policies/cache_policy.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/moe/experts/expert_weight_provider.h"
#include "workers/moe/placement/gate_cost.h"

namespace switchyard::moe {

struct ExpertOffloadOptions {
  int num_layers = 0;            // L, those with experts
  std::vector<int32_t> experts;  // [Ek] that rows may come for, in any layer, in the policy's order
  int token_uses = 0;            // of `experts` that a token needs in a layer, in the mean; 0 = not known
  // [L * Ek] share of its layer's rows that an expert has in a profile, [0, kRow]; empty: all are alike.
  std::vector<int64_t> popularity = {};
  // Called for each start.  popularity [L * Ek]: the order of copies into empty slots.
  std::function<std::unique_ptr<offload::CachePolicy>(const offload::OffloadShape& shape,
                                                      absl::Span<const int64_t> popularity)>
      make_policy;
  // The time of computing, in the policy's ticks: reading an expert's weights, and a row of one.
  int64_t expert_ticks = 1;
  int64_t row_ticks = 1;
  int64_t first_gate_ticks = 0;  // from the beginning of a pass to its first gate, at the least
  // > 0: ticks are nanoseconds; the time of layers beside their experts, and of a pass before its first gate, is
  // measured over so many gates (gate_cost.h).  0: layers take no time beside their experts.
  int measured_gates = 0;
};

// Since it was made.
struct ExpertOffloadCounters : ExpertStoreCounters {
  double plan_seconds = 0;  // of the policy
  double copy_seconds = 0;  // in which bytes were on their way (timed_copier.h); its owner's to set
};

class ExpertOffload : public ExpertWeightProvider {
 public:
  using Progress = ExpertStore::Progress;  // called while slots are filled; false ends that

  // Makes one with empty slots.
  // InvalidArgument: fewer slots than two, which a layer needs to copy while it computes.
  static absl::StatusOr<std::unique_ptr<ExpertOffload>> Create(ExpertOffloadOptions options,
                                                               std::unique_ptr<ExpertStore> store);

  // A start.  Blocks.  Errors: DeadlineExceeded, Cancelled, a copy's; another start must follow them.
  absl::Status Fill(absl::Time deadline, Progress progress);

  // InvalidArgument: one is not of `experts`.
  absl::Status Check(absl::Span<const int32_t> experts) const override;
  absl::Status BeginPass(absl::Span<const placement::LayerEstimate> estimates) override;
  // Every layer must be run in every pass, in order, also without rows; likewise micro-batches.  Errors: the store's,
  // compute's; Internal: layers or micro-batches out of turn, rows for an absent expert, an invalid plan.
  absl::Status RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                        Compute compute) override;

  // The policy's; kNoExpert: not one of `experts`.
  offload::ExpertKey KeyOf(int layer, int32_t expert) const;
  int num_layers() const { return shape_.num_layers; }
  absl::Span<const int32_t> experts() const { return options_.experts; }
  const ExpertStore& store() const { return *store_; }
  ExpertOffloadCounters counters() const { return {store_->counters(), plan_seconds_}; }
  int64_t waves() const { return waves_; }  // calls of compute so far

 private:
  // A plan on its way.
  struct UnderWay {
    std::vector<offload::PlanStep> steps;  // that are left
    absl::Time deadline;
    const Stream* stream = nullptr;  // the context's
  };

  ExpertOffload(ExpertOffloadOptions options, std::unique_ptr<ExpertStore> store);
  ExpertId IdOf(offload::ExpertKey key) const;
  bool AtStart() const { return next_layer_ == 0 && next_micro_batch_ == 0; }  // of a pass
  // [L * Ek] how much a start wants each expert in a slot.
  std::vector<int64_t> FirstWorth() const;
  // Pairs the policy's slots, which are to hold `wanted`, with the store's that do; evicts the others.
  absl::Status PairSlots(absl::Span<const offload::ExpertKey> wanted);
  // Copies what is wanted and missing, and waits for it.
  absl::Status CopyMissing(absl::Span<const offload::ExpertKey> wanted, absl::Time deadline, Progress progress);
  // Makes the policy's plan and counts its time.
  offload::LayerPlan Plan(absl::FunctionRef<offload::LayerPlan()> plan);
  // Measures the time since the gate before, or since the pass began.
  void MeasureCost(int layer, absl::Time now);
  // Checks the layer's turn; restarts if it must.
  absl::Status TakeTurn(const MoeContext& context, const LayerContext& layer);
  // Counts each expert's rows and notes its slot in the layout.
  absl::Status CountRows(const LayerContext& layer, const ExpertRows& rows);
  // Turns the estimates after this layer's gate into forecasts of this rank's experts.
  absl::Span<const offload::LayerForecast> Forecasts(int layer, absl::Span<const placement::LayerEstimate> estimates);
  absl::Status RunPlan(const MoeContext& context, const offload::LayerPlan& plan, Compute compute);
  // Does the copies and drops whose slot no earlier step uses.
  absl::Status StartSteps(UnderWay* plan);
  absl::Status Do(const offload::PlanStep& step);
  absl::Status RunWave(UnderWay* plan, Compute compute);

  const ExpertOffloadOptions options_;
  const offload::OffloadShape shape_;
  const std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<offload::CachePolicy> policy_;  // null: after an error
  offload::NeedForecast forecast_;
  int next_layer_ = 0, next_micro_batch_ = 0;
  int64_t waves_ = 0;
  double plan_seconds_ = 0;
  GateCost between_gates_, before_first_;
  absl::Time last_gate_ = absl::InfinitePast(), pass_began_ = absl::InfinitePast();
  int64_t last_expected_ = 0;                       // ticks that the layer of the last gate was to compute
  int64_t last_rows_ = 0;                           // its rows
  double waited_at_gate_ = 0;                       // wait_seconds of the store then
  std::vector<int32_t> place_of_;                   // [E] in options_.experts; -1 = not one of them
  std::vector<int> store_slots_;                    // [slots] of the policy: the store's
  std::vector<int32_t> rows_, slots_;               // [Ek] of the micro-batch that runs; slots of its layout
  std::vector<int32_t> layer_rows_;                 // [Ek] of the layer's micro-batches so far
  std::vector<int32_t> later_;                      // [Ek] of those to come, where they are known
  std::vector<int64_t> expected_;                   // [Ek] of an estimate
  std::vector<const ops::Weight*> gate_up_, down_;  // [slots] of a wave
};

}  // namespace switchyard::moe
