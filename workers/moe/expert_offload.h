// A rank's experts when its device holds a part of them: what a cache policy plans, layer by layer, done with an expert
// store.
//
// A layer whose rows are known asks the policy (scheduler/offload) for a plan, whose steps are carried out as
// layer_plan.h says: copies start as soon as their slot's uses are over, and experts compute in waves: those that the
// plan uses next and that are there, at least one, together.  The policy hears what a forecaster expects of coming
// layers, as chances (scheduler/offload/need_forecast.h), and nothing of copies; a late one is waited for.  What an
// expert computes does not depend on its wave.
//
// After an error the next pass begins anew: policy and slots as at the start.  Thread-compatible: the step's thread.
// Does not do: several micro-batches of a layer, replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/offload/cache_policy.h"
#include "scheduler/offload/layer_plan.h"
#include "scheduler/offload/need_forecast.h"
#include "workers/moe/expert_store.h"
#include "workers/moe/layer_experts.h"

namespace switchyard {

struct ExpertOffloadOptions {
  int num_layers = 0;              // L, those with experts
  std::vector<int32_t> residents;  // [El] the rank's experts, by slot of the layout, in every layer
  // Anew for each start.
  std::function<std::unique_ptr<CachePolicy>(const OffloadShape& shape)> make_policy;
  // What the policy is told that computing takes, in its ticks: reading an expert's weights, and a row of one.
  int64_t expert_ticks = 1;
  int64_t row_ticks = 1;
};

class ExpertOffload : public LayerExperts {
 public:
  // Fills the slots as the policy wants them at first; blocks, at most until the deadline.
  // Errors: InvalidArgument (fewer slots than two, which a layer needs to copy while it computes), the store's.
  static absl::StatusOr<std::unique_ptr<ExpertOffload>> Create(ExpertOffloadOptions options,
                                                               std::unique_ptr<ExpertStore> store, absl::Time deadline);

  // InvalidArgument: other experts than the residents; Unimplemented: several micro-batches.
  absl::Status Check(absl::Span<const int32_t> experts, int num_micro_batches) const override;
  // Every layer must be run in every pass, in order, also without rows.  Errors: the store's, compute's; Internal:
  // layers out of turn, a plan that does not hold together.
  absl::Status RunLayer(const Call& call, Compute compute) override;

  absl::Span<const int32_t> residents() const { return options_.residents; }
  const ExpertStore& store() const { return *store_; }
  int64_t waves() const { return waves_; }  // calls of compute so far

 private:
  // A plan on its way.
  struct Progress {
    std::vector<PlanStep> steps;  // that are left
    absl::Time deadline;
    const Stream* stream = nullptr;  // the call's
  };

  ExpertOffload(ExpertOffloadOptions options, std::unique_ptr<ExpertStore> store);
  ExpertId IdOf(ExpertKey key) const;
  absl::Status Restart(absl::Time deadline);
  // What the estimates mean for this rank's experts, for the policy.
  absl::Span<const LayerForecast> Forecasts(const LayerNeed& need, absl::Span<const LayerEstimate> estimates);
  absl::Status RunPlan(const LayerPlan& plan, const Call& call, Compute compute);
  // Does all copies and drops whose slot no earlier step still uses.
  absl::Status StartSteps(Progress* progress);
  absl::Status Do(const PlanStep& step);
  absl::Status RunWave(Progress* progress, Compute compute);

  const ExpertOffloadOptions options_;
  const OffloadShape shape_;
  const std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<CachePolicy> policy_;  // null: after an error
  NeedForecast forecast_;
  int next_layer_ = 0;
  int64_t waves_ = 0;
  std::vector<int32_t> rows_;                  // [El]
  std::vector<int64_t> expected_;              // [El] of an estimate
  std::vector<const Weight*> gate_up_, down_;  // [El] of a wave
};

}  // namespace switchyard
