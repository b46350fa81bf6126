#include "scheduler/placement/background/residency.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/background/balance_search.h"
#include "scheduler/placement/background/noise_cases.h"
#include "scheduler/placement/background/residency_order.h"
#include "scheduler/placement/background/resident_set.h"

namespace switchyard::placement {
namespace {

constexpr int kSearchDraws = 2, kJudgeDraws = 4;
constexpr uint64_t kSearchSeed = 1, kJudgeSeed = 2;

template <class... Words>
absl::Status Refuse(const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat("residency: ", words...));
}

absl::Status CheckPhases(const ResidencyProblem& problem) {
  const size_t layers = problem.present.size();
  const int experts = problem.present[0].placement.num_experts;
  if (problem.phases.empty()) return Refuse("no profile");
  for (size_t p = 0; p < problem.phases.size(); ++p) {
    const PhaseProfile& phase = problem.phases[p];
    if (phase.steps < 1) return Refuse("profile ", p, " has steps=", phase.steps, ", must be at least 1");
    if (phase.rows.size() != layers) return Refuse("profile ", p, " has ", phase.rows.size(), " layers, not ", layers);
    for (size_t layer = 0; layer < layers; ++layer) {
      const popularity::Popularity& rows = phase.rows[layer];
      if (rows.size() != static_cast<size_t>(experts)) {
        return Refuse("profile ", p, ", layer ", layer, " has ", rows.size(), " experts, not ", experts);
      }
      const auto negative = std::find_if(rows.begin(), rows.end(), [](int64_t entry) { return entry < 0; });
      if (negative != rows.end()) {
        return Refuse("profile ", p, ", layer ", layer, ", expert ", negative - rows.begin(), " has rows=", *negative);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckProblem(const ResidencyProblem& problem) {
  if (problem.present.empty()) return Refuse("no layers");
  const Placement& first = problem.present[0].placement;
  for (size_t layer = 0; layer < problem.present.size(); ++layer) {
    const LayerResidency& residency = problem.present[layer];
    const Placement& placement = residency.placement;
    if (placement.num_experts != first.num_experts || placement.num_devices() != first.num_devices() ||
        residency.offloaded.size() != static_cast<size_t>(first.num_experts)) {
      return Refuse("layer ", layer, " differs from layer 0 in experts or devices");
    }
    for (const auto& slots : placement.slots) {
      if (static_cast<int>(slots.size()) == problem.limits.layer_slots + 1) continue;
      return Refuse("layer ", layer, " has ", slots.size(),
                    " slots a device, not layer_slots + 1 = ", problem.limits.layer_slots + 1);
    }
  }
  RETURN_IF_ERROR(CheckResidency(problem.present, problem.limits));
  const ResidencyCosts& costs = problem.costs;
  if (!(costs.row_seconds >= 0) || !(costs.miss_seconds >= 0) || !(costs.move_seconds >= 0) ||
      !(costs.traffic_noise >= 0) || costs.expert_bytes < 0 || costs.horizon_steps < 0) {
    return Refuse("a cost is below zero: row_seconds=", costs.row_seconds, " miss_seconds=", costs.miss_seconds,
                  " move_seconds=", costs.move_seconds, " traffic_noise=", costs.traffic_noise,
                  " expert_bytes=", costs.expert_bytes, " horizon_steps=", costs.horizon_steps);
  }
  return CheckPhases(problem);
}

// The background balancer over one problem; one call of Run.
class Planner {
 public:
  explicit Planner(const ResidencyProblem& problem)
      : problem_(problem),
        layers_(problem.present),
        devices_(layers_[0].placement.num_devices()),
        experts_(layers_[0].placement.num_experts) {
    for (const PhaseProfile& phase : problem.phases) all_steps_ += static_cast<double>(phase.steps);
  }

  ResidencyPlan Run() {
    ResidencyPlan plan;
    plan.horizon_steps = problem_.costs.horizon_steps;
    plan.layer_facts.resize(layers_.size());
    Estimate(&plan);
    ResidentSet residents(problem_.limits, values_, &layers_);
    if (residents.scarce()) residents.LoadWhatPays(ReplicaValues(), problem_.costs.move_seconds);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (seconds_per_load_[layer] <= 0) continue;
      BalanceProblem balance = BalanceOf(layer);
      balance.slot_prices = residents.SlotPrices(static_cast<int>(layer), problem_.limits.layer_slots);
      BalanceResult result = SearchBalance(balance);
      plan.layer_facts[layer] = result.facts;
      if (!(result.placement == layers_[layer].placement)) {
        residents.Replace(static_cast<int>(layer), std::move(result.placement));
      }
    }
    plan.layers = std::move(layers_);
    return plan;
  }

 private:
  // Fills shares, hit rates and their worth, as if rows of a step fell on experts independently.
  void Estimate(ResidencyPlan* plan) {
    const ResidencyCosts& costs = problem_.costs;
    const double horizon = static_cast<double>(costs.horizon_steps);
    plan->expert_facts.assign(layers_.size(), std::vector<ExpertFacts>(experts_));
    values_.assign(layers_.size(), std::vector<ResidentValue>(experts_));
    seconds_per_load_.assign(layers_.size(), 0);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      double total = 0;
      for (const PhaseProfile& phase : problem_.phases) {
        const double weight = static_cast<double>(phase.steps) / all_steps_;
        for (int expert = 0; expert < experts_; ++expert) {
          const int64_t rows = phase.rows[layer][expert];
          const double a_step =
              static_cast<double>(rows) / static_cast<double>(popularity::kRow) / static_cast<double>(phase.steps);
          const double missed = std::exp(-a_step);
          ResidentValue& value = values_[layer][expert];
          value.seconds += horizon * costs.miss_seconds * weight * (1 - missed);
          value.error +=
              horizon * costs.miss_seconds * weight * missed * a_step * RelativeError(rows, costs.traffic_noise);
          ExpertFacts& facts = plan->expert_facts[layer][expert];
          facts.share += static_cast<float>(weight * a_step);
          facts.hit_rate += static_cast<float>(weight * (1 - missed));
          total += weight * a_step;
        }
      }
      seconds_per_load_[layer] = horizon * costs.row_seconds * total / devices_;
      for (ExpertFacts& facts : plan->expert_facts[layer]) facts.share /= static_cast<float>(total > 0 ? total : 1);
    }
  }

  std::vector<PhaseRows> PhasesOf(size_t layer) const {
    std::vector<PhaseRows> phases;  // weighted by time, that is by rows
    for (const PhaseProfile& phase : problem_.phases) {
      phases.push_back({phase.rows[layer], static_cast<double>(popularity::TotalOf(phase.rows[layer]))});
    }
    return phases;
  }

  BalanceProblem BalanceOf(size_t layer) const {
    const ResidencyCosts& costs = problem_.costs;
    return {.present = &layers_[layer],
            .search = DrawCases(PhasesOf(layer), devices_, costs.traffic_noise, kSearchDraws, kSearchSeed),
            .judge = DrawCases(PhasesOf(layer), devices_, costs.traffic_noise, kJudgeDraws, kJudgeSeed),
            .layer_slots = problem_.limits.layer_slots,
            .slot_prices = {},
            .seconds_per_load = seconds_per_load_[layer],
            .seconds_per_copy = costs.move_seconds};
  }

  // The saving of each replica in the present placement: how much busier the layer's busiest device is without it.
  std::vector<ReplicaValue> ReplicaValues() const {
    std::vector<ReplicaValue> values;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (seconds_per_load_[layer] <= 0) continue;
      SplitCases split(layers_[layer].placement, BalanceOf(layer).judge);
      split.Finalize(kRounds);
      for (int expert = 0; expert < experts_; ++expert) {
        if (split.num_hosts(expert) < 2) continue;
        for (const int32_t device : split.DevicesOf(expert)) {
          SplitCases without = split;
          without.RemoveHost(expert, device);
          without.Finalize(kRounds);
          values.push_back({static_cast<int>(layer), expert, device,
                            seconds_per_load_[layer] * std::max(0.0, without.Busiest() - split.Busiest())});
        }
      }
    }
    return values;
  }

  static constexpr int kRounds = 20;
  const ResidencyProblem& problem_;
  std::vector<LayerResidency> layers_;
  const int devices_, experts_;
  double all_steps_ = 0;
  std::vector<std::vector<ResidentValue>> values_;  // [L][E]
  std::vector<double> seconds_per_load_;            // [L]
};

}  // namespace

absl::StatusOr<std::vector<LayerResidency>> InitialResidency(int num_layers, int num_experts, int num_devices,
                                                             const ResidencyLimits& limits) {
  const int per_device = (num_experts + num_devices - 1) / num_devices;
  if (per_device > limits.layer_slots) {
    return Refuse("E=", num_experts, " over R=", num_devices, " devices is ", per_device,
                  " experts each, more than layer_slots=", limits.layer_slots);
  }
  const LayerResidency layer{ContiguousPlacement(num_experts, num_devices, limits.layer_slots + 1 - per_device),
                             std::vector<bool>(num_experts, true)};
  std::vector<LayerResidency> layers(num_layers, layer);
  for (int device = 0; device < num_devices; ++device) {
    int left = limits.device_slots;
    for (int slot = 0; slot < per_device; ++slot) {
      const int32_t expert = layer.placement.slots[device][slot];
      for (int l = 0; l < num_layers && expert != kEmptySlot && left > 0; ++l, --left) {
        layers[l].offloaded[expert] = false;
      }
    }
  }
  return layers;
}

absl::StatusOr<ResidencyPlan> PlanResidency(const ResidencyProblem& problem) {
  RETURN_IF_ERROR(CheckProblem(problem));
  ResidencyPlan plan = Planner(problem).Run();
  AddMigrations(problem, &plan);
  return plan;
}

void AddMigrations(const ResidencyProblem& problem, ResidencyPlan* plan) {
  std::vector<int> order(problem.present.size());
  std::iota(order.begin(), order.end(), 0);
  if (!plan->layer_facts.empty()) {
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return plan->layer_facts[a].saved_seconds > plan->layer_facts[b].saved_seconds;
    });
  }
  plan->epoch = problem.next_epoch;
  plan->migrations = OrderMoves(problem.present, problem.limits, order, &plan->layers);
  for (const ResidencyMigration& migration : plan->migrations) {
    plan->copies += std::count_if(migration.arrivals.begin(), migration.arrivals.end(),
                                  [](const ResidencyMove& move) { return move.kind != MoveKind::kRehome; });
  }
  plan->bytes = plan->copies * problem.costs.expert_bytes;
}

}  // namespace switchyard::placement
