#include "server/balancer/expert_load_balancing.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::server {
namespace {

// Some minutes of a busy server; older counts fade.
constexpr int64_t kHalveLoadStatsAfterTokens = 256 * 1024;

// Whether the report fits a group of `world` workers with this model.
bool Fits(const placement::ExpertReport& report, const popularity::RoutingShape& shape, size_t world) {
  const placement::Placement& first = report.placements.front();
  return report.placements.size() == static_cast<size_t>(shape.num_layers) && first.num_experts == shape.num_experts &&
         first.slots.size() == world;
}

}  // namespace

void ExpertLoadBalancing::Begin(const std::vector<fleet::WorkerInfo>& workers) {
  const fleet::WorkerInfo& first = workers.front();
  if (first.num_moe_layers == 0) return;
  // Before a group has served, the first workers may have had another model.
  if (!load_stats_.has_value()) meter_.emplace(first.expert_bytes, config_->experts.copy_bytes_per_second);
  num_workers_ = static_cast<int>(workers.size());
  const int64_t all =
      int64_t{first.num_moe_layers} * placement::ExpertsOfLayer(config_->placement, first.num_experts, num_workers_);
  int64_t slots = all;  // of the worker with the smallest budget
  for (const fleet::WorkerInfo& worker : workers) {
    if (worker.expert_budget.has_value()) {
      slots = std::min(slots, worker.expert_budget->PartsOf(all, std::max<int64_t>(1, first.expert_bytes)));
    }
  }
  budget_slots_ = slots < all ? static_cast<int>(slots) : 0;
  costs_ = meter_->Costs();
  expert_cost_ = meter_->Expert();
  measured_ = meter_->row_seconds() > 0 || meter_->weights_seconds() > 0;
  steps_since_costs_ = 0;
}

void ExpertLoadBalancing::GroupUp(int world, const fleet::WorkerInfo& first) {
  if (!load_stats_.has_value() && first.num_moe_layers > 0) {
    load_stats_.emplace(popularity::RoutingShape{first.num_moe_layers, first.num_experts, first.experts_per_token},
                        kHalveLoadStatsAfterTokens);
  }
  in_place_ = first.experts_in_place;
  reports_.assign(static_cast<size_t>(world), {});
}

void ExpertLoadBalancing::GroupDown() { reports_.clear(); }

void ExpertLoadBalancing::StepDone(const batching::StepResult& result, bool whole) {
  if (!load_stats_.has_value()) return;
  if (const absl::Status status = Count(result); !status.ok()) LogWarn("step ", result.step, ": ", status.message());
  if (!whole || meter_->Add(result)) LookAtCosts();
}

void ExpertLoadBalancing::LookAtCosts() {
  if (++steps_since_costs_ < (measured_ ? kCostsApart : kFirstCosts)) return;
  if (meter_->row_seconds() <= 0 && meter_->weights_seconds() <= 0) return;
  steps_since_costs_ = 0;
  measured_ = true;
  costs_ = meter_->Costs();
  expert_cost_ = meter_->Expert();
  meter_->Fade();
}

absl::Status ExpertLoadBalancing::Count(const batching::StepResult& result) {
  const auto size = static_cast<size_t>(load_stats_->shape().num_layers) * load_stats_->shape().num_experts;
  std::vector<int64_t> prefill(size, 0), decode(size, 0);
  for (const batching::RankResult& rank : result.ranks) {
    if (rank.expert_counts.empty()) continue;
    const bool decodes = !rank.decode_expert_counts.empty();
    if (rank.expert_counts.size() != size || (decodes && rank.decode_expert_counts.size() != size)) {
      return absl::InvalidArgumentError(absl::StrCat("a worker tells ", rank.expert_counts.size(), " and ",
                                                     rank.decode_expert_counts.size(), " counts of experts, expected ",
                                                     size));
    }
    for (size_t i = 0; i < size; ++i) {
      const int64_t of_decodes = decodes ? rank.decode_expert_counts[i] : 0;
      if (of_decodes < 0 || of_decodes > rank.expert_counts[i] ||
          rank.expert_counts[i] > popularity::ExpertLoadStats::kMaxCount) {
        return absl::InvalidArgumentError(absl::StrCat("a worker tells ", rank.expert_counts[i], " rows of an expert, ",
                                                       of_decodes, " of them decoded"));
      }
      decode[i] += of_decodes;
      prefill[i] += rank.expert_counts[i] - of_decodes;
    }
  }
  RETURN_IF_ERROR(load_stats_->Add(popularity::Phase::kPrefill, prefill));
  return load_stats_->Add(popularity::Phase::kDecode, decode);
}

void ExpertLoadBalancing::Report(int rank, std::shared_ptr<const placement::ExpertReport> report, absl::Time now) {
  // Readers of a copy index reports by the load statistics' layers.
  const bool places = !report->placements.empty();
  if (places && (!load_stats_.has_value() || !Fits(*report, load_stats_->shape(), reports_.size()))) return;
  if (meter_.has_value()) meter_->NoteCopies(rank, report->copied_bytes, report->copy_seconds);
  reports_[static_cast<size_t>(rank)] = {std::move(report), now};
}

std::unique_ptr<const ExpertsCopy> ExpertLoadBalancing::Copy() const {
  if (!load_stats_.has_value()) return nullptr;
  return std::make_unique<const ExpertsCopy>(
      ExpertsCopy{*load_stats_, config_->placement.mode, num_workers_, in_place_, reports_, budget_slots_});
}

}  // namespace switchyard::server
