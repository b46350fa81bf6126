#include "scheduler/placement/background/residency.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/background/balance_search.h"
#include "scheduler/placement/background/noise_cases.h"
#include "scheduler/placement/background/residency_order.h"

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
  const int experts = problem.present[0].num_experts;
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
  const Placement& first = problem.present[0];
  for (size_t layer = 0; layer < problem.present.size(); ++layer) {
    const Placement& placement = problem.present[layer];
    if (placement.num_experts != first.num_experts || placement.num_devices() != first.num_devices()) {
      return Refuse("layer ", layer, " differs from layer 0 in experts or devices");
    }
    for (const auto& slots : placement.slots) {
      if (static_cast<int>(slots.size()) == problem.layer_slots + 1) continue;
      return Refuse("layer ", layer, " has ", slots.size(),
                    " slots a device, not layer_slots + 1 = ", problem.layer_slots + 1);
    }
  }
  RETURN_IF_ERROR(CheckResidency(problem.present, problem.layer_slots));
  const ResidencyCosts& costs = problem.costs;
  if (!(costs.row_seconds >= 0) || !(costs.move_seconds >= 0) || !(costs.traffic_noise >= 0) ||
      costs.expert_bytes < 0 || costs.horizon_steps < 0) {
    return Refuse("a cost is below zero: row_seconds=", costs.row_seconds, " move_seconds=", costs.move_seconds,
                  " traffic_noise=", costs.traffic_noise, " expert_bytes=", costs.expert_bytes,
                  " horizon_steps=", costs.horizon_steps);
  }
  return CheckPhases(problem);
}

// The background balancer over one problem; one call of Run.
class Planner {
 public:
  explicit Planner(const ResidencyProblem& problem)
      : problem_(problem),
        layers_(problem.present),
        devices_(layers_[0].num_devices()),
        experts_(layers_[0].num_experts) {
    for (const PhaseProfile& phase : problem.phases) all_steps_ += static_cast<double>(phase.steps);
  }

  ResidencyPlan Run() {
    ResidencyPlan plan;
    plan.horizon_steps = problem_.costs.horizon_steps;
    plan.layer_facts.resize(layers_.size());
    Estimate(&plan);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      if (seconds_per_load_[layer] <= 0) continue;
      BalanceResult result = SearchBalance(BalanceOf(layer));
      plan.layer_facts[layer] = result.facts;
      layers_[layer] = std::move(result.placement);
    }
    plan.layers = std::move(layers_);
    return plan;
  }

 private:
  // Fills each expert's share of its layer's rows, and what a row costs.
  void Estimate(ResidencyPlan* plan) {
    const ResidencyCosts& costs = problem_.costs;
    const double horizon = static_cast<double>(costs.horizon_steps);
    plan->row_shares.assign(layers_.size(), std::vector<float>(experts_));
    seconds_per_load_.assign(layers_.size(), 0);
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      std::vector<float>& shares = plan->row_shares[layer];
      double total = 0;
      for (const PhaseProfile& phase : problem_.phases) {
        const double weight = static_cast<double>(phase.steps) / all_steps_;
        for (int expert = 0; expert < experts_; ++expert) {
          const double a_step = static_cast<double>(phase.rows[layer][expert]) / static_cast<double>(popularity::kRow) /
                                static_cast<double>(phase.steps);
          shares[expert] += static_cast<float>(weight * a_step);
          total += weight * a_step;
        }
      }
      seconds_per_load_[layer] = horizon * costs.row_seconds * total / devices_;
      for (float& share : shares) share /= static_cast<float>(total > 0 ? total : 1);
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
            .layer_slots = problem_.layer_slots,
            .seconds_per_load = seconds_per_load_[layer],
            .seconds_per_copy = costs.move_seconds};
  }

  const ResidencyProblem& problem_;
  std::vector<Placement> layers_;
  const int devices_, experts_;
  double all_steps_ = 0;
  std::vector<double> seconds_per_load_;  // [L]
};

}  // namespace

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
  plan->migrations = OrderMoves(problem.present, problem.layer_slots, order, &plan->layers);
  for (const ResidencyMigration& migration : plan->migrations) {
    plan->copies += static_cast<int64_t>(migration.arrivals.size());
  }
  plan->bytes = plan->copies * problem.costs.expert_bytes;
}

}  // namespace switchyard::placement
