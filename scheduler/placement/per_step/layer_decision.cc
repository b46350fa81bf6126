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
  SlotPlan Prepare(const LayerEstimate& estimate, int) override { return {.layer = estimate.layer}; }
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
    const popularity::Popularity even(residents.num_experts, 1);
    tables_.emplace_back(spread ? FillEmptySlots(residents, {}, {.estimate = even, .error = popularity::kRow})
                                : residents);
  }
  estimates_.resize(shape_.residents.size());
  errors_.assign(shape_.residents.size(), popularity::kRow / 4);
}

LayerDecision PlacementPolicy::Decide(const LayerInputs& inputs) {
  const int num_layers = static_cast<int>(tables_.size());
  SY_CHECK(inputs.layer >= 0 && inputs.layer < num_layers);
  LayerDecision decision;
  decision.number = number_++;
  decision.layer = inputs.layer;
  NoteError(inputs);
  SlotTable& table = tables_[inputs.layer];
  decision.demand = FineTune(inputs);
  table.Change(decision.demand.changes, decision.number);
  decision.split = Split(inputs);
  decision.awaited = table.Await(decision.split);
  estimates_[inputs.layer].clear();
  for (const LayerEstimate& estimate : inputs.estimates) {
    SY_CHECK(estimate.layer >= 0 && estimate.layer < num_layers);
    const int later = estimate.layer - inputs.layer;
    const int ahead = later > 0 ? later : later + num_layers;
    if (!Uses(ahead)) continue;
    decision.prefetch.push_back(Prepare(estimate, ahead));
    tables_[estimate.layer].Change(decision.prefetch.back().changes, decision.number);
    estimates_[estimate.layer].assign(estimate.popularity.begin(), estimate.popularity.end());
  }
  decision.digest = DigestOf(
      {.shape = shape_, .inputs = inputs, .errors = errors_, .table = tables_[inputs.layer], .decision = decision});
  return decision;
}

void PlacementPolicy::NoteError(const LayerInputs& inputs) {
  const popularity::Popularity& reported = estimates_[inputs.layer];
  if (reported.empty()) return;
  const popularity::Popularity expected = popularity::ScaledTo(reported, popularity::kRow),
                               actual = popularity::ScaledTo(inputs.counts.OfExperts(), popularity::kRow);
  int64_t distance = 0;
  for (size_t e = 0; e < actual.size(); ++e) distance += std::abs(expected[e] - actual[e]);
  int64_t& error = errors_[inputs.layer];
  error = (3 * error + distance / 2) / 4;
}

absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakePlacementPolicy(PolicyShape shape) {
  RETURN_IF_ERROR(Validate(shape));
  switch (shape.mode) {
    case PlacementMode::kAgreed:
    case PlacementMode::kAuto:
    case PlacementMode::kOracle:
      return std::make_unique<AgreedPolicy>(std::move(shape));
    case PlacementMode::kCentral:
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
