#include "scheduler/placement/per_step/layer_decision.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/lina/alias_placement.h"
#include "scheduler/placement/lina/paper_policy.h"
#include "scheduler/placement/per_step/agreed_policy.h"
#include "scheduler/placement/per_step/decision_facts.h"

namespace switchyard::placement {
namespace {

// The policy of modes in which nothing moves.
class StaticPolicy : public PlacementPolicy {
 public:
  StaticPolicy(PolicyShape shape, bool spread) : PlacementPolicy(std::move(shape), spread) {}

 protected:
  SlotPlan FineTune(const LayerInputs& inputs) override { return {.layer = inputs.layer}; }
  SplitTable Split(const LayerInputs& inputs) override {
    return SplitByCounts(inputs.counts, table(inputs.layer).replicas());
  }
};

absl::Status Validate(const PolicyShape& shape) {
  if (shape.residents.empty()) return absl::InvalidArgumentError("placement policy: no layers");
  if (shape.top_k < 1) return absl::InvalidArgumentError(absl::StrCat("placement policy: top_k ", shape.top_k, " < 1"));
  for (size_t layer = 0; layer < shape.residents.size(); ++layer) {
    const Placement& placement = shape.residents[layer];
    if (const absl::Status status = CheckPlacement(placement); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", status.message()));
    }
    const Placement& first = shape.residents[0];
    if (placement.num_experts != first.num_experts || placement.num_devices() != first.num_devices()) {
      return absl::InvalidArgumentError(absl::StrCat("placement policy: layer ", layer, " has ", placement.num_experts,
                                                     " experts on ", placement.num_devices(), " devices, layer 0 ",
                                                     first.num_experts, " on ", first.num_devices()));
    }
    if (!IsPaper(shape.mode)) continue;
    // The paper's allocation has the same number of slots on every device.
    for (const std::vector<int32_t>& device : placement.slots) {
      if (device.size() == placement.slots[0].size()) continue;
      return absl::InvalidArgumentError(absl::StrCat("placement policy: layer ", layer, " has devices of ",
                                                     device.size(), " and of ", placement.slots[0].size(), " slots"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

PlacementPolicy::PlacementPolicy(PolicyShape shape, bool spread) : shape_(std::move(shape)) {
  for (const Placement& residents : shape_.residents) {
    tables_.emplace_back(spread ? SpreadReplicas(residents) : residents);
  }
  estimates_.resize(shape_.residents.size());
}

LayerDecision PlacementPolicy::Decide(const LayerInputs& inputs) {
  const int num_layers = static_cast<int>(tables_.size());
  SY_CHECK(inputs.layer >= 0 && inputs.layer < num_layers);
  LayerDecision decision;
  decision.number = number_++;
  decision.layer = inputs.layer;
  SlotTable& table = tables_[inputs.layer];
  decision.demand = FineTune(inputs);
  table.Change(decision.demand.changes, decision.number);
  decision.split = Split(inputs);
  decision.awaited = table.Await(decision.split);
  estimates_[inputs.layer].clear();
  for (const LayerEstimate& estimate : inputs.estimates) {
    SY_CHECK(estimate.layer >= 0 && estimate.layer < num_layers);
    if (estimate.layer != (inputs.layer + 1) % num_layers) continue;
    decision.prefetch.push_back(Prepare(estimate));
    tables_[estimate.layer].Change(decision.prefetch.back().changes, decision.number);
    estimates_[estimate.layer].assign(estimate.popularity.begin(), estimate.popularity.end());
  }
  decision.digest = DigestOf({.shape = shape_, .inputs = inputs, .table = tables_[inputs.layer], .decision = decision});
  return decision;
}

absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakePlacementPolicy(PolicyShape shape) {
  RETURN_IF_ERROR(Validate(shape));
  switch (shape.mode) {
    case PlacementMode::kAgreed:
    case PlacementMode::kAuto:
      return std::make_unique<AgreedPolicy>(std::move(shape));
    case PlacementMode::kLina:
    case PlacementMode::kNoEstimate:
    case PlacementMode::kNoFinetune:
      return std::make_unique<PaperPolicy>(std::move(shape));
    case PlacementMode::kStaticSpare:
    case PlacementMode::kStatic:
    case PlacementMode::kIdeal: {
      const bool spread = shape.mode == PlacementMode::kStaticSpare;
      return std::make_unique<StaticPolicy>(std::move(shape), spread);
    }
  }
  return absl::InvalidArgumentError("placement policy: unknown mode");
}

}  // namespace switchyard::placement
