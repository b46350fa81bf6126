// A rank's experts when its device holds a part of them: what a cache policy plans, layer by layer, done with an expert
// store.
//
// A layer whose rows are known asks the policy (scheduler/offload) for a plan, whose steps are carried out as
// layer_plan.h says: copies start as soon as their slot's uses are over, and experts compute in waves: those that the
// plan uses next and that are there, at least one, together.  The policy hears what a forecaster expects of coming
// layers, as chances (scheduler/offload/forecast/need_forecast.h), and nothing of copies; a late one is waited for.
// What an expert computes does not depend on its wave.
//
// Keys of the policy are experts, whatever slots of a layout they stand in, so that a placement may change which of
// them rows come for (cached_expert_host.h): that copies nothing and gives nothing up, the policy does, which is
// notified of it.
//
// A start, that is a group's and a pass' after an error, begins with a policy that knows nothing of traffic.  Slots
// keep what they hold, before anything that is merely popular; only what the background balancer wants in memory goes
// before that. So a start copies what is missing and no more.
//
// A layer in micro-batches is planned micro-batch by micro-batch, as rows arrive: what a later one needs stays in its
// slot as far as it is known (this rank's own tokens), then what an earlier one has used; so each runs in waves of its
// own.
//
// Thread-compatible: the step's thread.
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

// What a start is told of an expert.
enum class ExpertHosting : uint8_t {
  kElsewhere,  // no rows come for it here
  kHere,       // rows may
  kInMemory,   // they may, and the background balancer wants it in memory
};

struct ExpertOffloadOptions {
  int num_layers = 0;            // L, those with experts
  std::vector<int32_t> experts;  // [Ek] that rows may ever come for, in any layer: the policy's, in this order
  // [L * Ek] rows of its layer that an expert is expected to get, by a profile, [0, kRow]; empty: all are alike.
  std::vector<int64_t> popularity = {};
  // Anew for each start.  popularity [L * Ek]: what is copied first, where slots are empty; 0 = no rows come for it.
  std::function<std::unique_ptr<offload::CachePolicy>(const offload::OffloadShape& shape,
                                                      absl::Span<const int64_t> popularity)>
      make_policy;
  // What the policy is told that computing takes, in its ticks: reading an expert's weights, and a row of one.
  int64_t expert_ticks = 1;
  int64_t row_ticks = 1;
  int64_t first_gate_ticks = 0;  // from the beginning of a pass to its first gate, at the least
  // > 0: ticks are nanoseconds, and what layers take beside their experts, and a pass before its first gate, is
  // measured over so many gates, then a constant (gate_cost.h).  0: layers take nothing beside their experts.
  int measured_gates = 0;
};

// Since it was made.
struct ExpertOffloadCounters : ExpertStoreCounters {
  double plan_seconds = 0;  // of the policy
};

class ExpertOffload : public ExpertWeightProvider {
 public:
  // Told while slots are filled; false ends it.
  using Progress = absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)>;

  // Slots are empty yet, and rows may come for every expert.
  // InvalidArgument: fewer slots than two, which a layer needs to copy while it computes.
  static absl::StatusOr<std::unique_ptr<ExpertOffload>> Create(ExpertOffloadOptions options,
                                                               std::unique_ptr<ExpertStore> store);

  // A start.  hosting [L * Ek].  Blocks.  Errors: DeadlineExceeded, Cancelled, a copy's; then another must follow.
  absl::Status Fill(std::vector<ExpertHosting> hosting, absl::Time deadline, Progress progress);
  // Rows may come for this expert from now on, or no more.  Does not wait.  REQUIRES: it is one of `experts`.
  void Host(int layer, int32_t expert, bool here);
  // A plan of residency wants it in memory from now on, or does not: for the policy, and for the next start.  Copies
  // nothing by itself.  REQUIRES: rows may come for it.
  void Prefer(int layer, int32_t expert, bool in_memory);

  // InvalidArgument: one that is not of `experts`.
  absl::Status Check(absl::Span<const int32_t> experts) const override;
  absl::Status BeginPass(absl::Span<const placement::LayerEstimate> estimates) override;
  // Every layer must be run in every pass, in order, also without rows, and so its micro-batches.  Errors: the store's,
  // compute's; Internal: layers or micro-batches out of turn, rows for what is not here, a plan that does not hold
  // together.
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
  absl::Status Restart(absl::Time deadline, Progress progress);
  // What a start wants in slots, most wanted first, [L * Ek]; 0 = not at all.
  std::vector<int64_t> FirstWorth() const;
  // Pairs the policy's slots, which are to hold this, with those of the store that do; gives up what else they hold.
  absl::Status PairSlots(absl::Span<const offload::ExpertKey> wanted);
  // Copies what is wanted and not there; returns when all of it is.
  absl::Status CopyMissing(absl::Span<const offload::ExpertKey> wanted, absl::Time deadline, Progress progress);
  // The policy's plan; what it takes is counted.
  offload::LayerPlan Plan(absl::FunctionRef<offload::LayerPlan()> plan);
  // Measures what has passed since the gate before, or since the pass began.
  void MeasureCost(int layer, absl::Time now);
  // Whose turn it is; begins anew where it must.
  absl::Status TakeTurn(const MoeContext& context, const LayerContext& layer);
  // Rows of each expert, and where the layout has it.
  absl::Status CountRows(const LayerContext& layer, const ExpertRows& rows);
  // What the estimates that were made after this layer's gate mean for this rank's experts, for the policy.
  absl::Span<const offload::LayerForecast> Forecasts(int layer, absl::Span<const placement::LayerEstimate> estimates);
  absl::Status RunPlan(const MoeContext& context, const offload::LayerPlan& plan, Compute compute);
  // Does all copies and drops whose slot no earlier step still uses.
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
  double waited_at_gate_ = 0;                       // wait_seconds of the store then
  std::vector<int32_t> place_of_;                   // [E] in options_.experts; -1 = not one of them
  std::vector<ExpertHosting> hosting_;              // [L * Ek]
  std::vector<int> store_slots_;                    // [slots] of the policy: the store's
  std::vector<int32_t> rows_, slots_;               // [Ek] of the micro-batch that runs; slots of its layout
  std::vector<int32_t> layer_rows_;                 // [Ek] of the layer's micro-batches so far
  std::vector<int32_t> later_;                      // [Ek] of those to come, where they are known
  std::vector<int64_t> expected_;                   // [Ek] of an estimate
  std::vector<const ops::Weight*> gate_up_, down_;  // [slots] of a wave
};

}  // namespace switchyard::moe
