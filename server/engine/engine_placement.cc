// The engine loop's part in placing experts: what the slow loop decides goes to the workers, what they answer comes
// back, and what is to be seen of it goes to whoever asks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "server/clock.h"
#include "server/engine/engine_loop.h"

namespace switchyard {
namespace {

// Whether these are places of a group of that many workers with such a model.
bool Fits(const ExpertReport& report, const RoutingShape& shape, size_t world) {
  const Placement& first = report.placements.front();
  return report.placements.size() == static_cast<size_t>(shape.num_layers) && first.num_experts == shape.num_experts &&
         first.slots.size() == world;
}

}  // namespace

GroupPlacement EngineLoop::OnForming(const std::vector<WorkerInfo>& workers) {
  const WorkerInfo& first = workers.front();
  if (first.num_moe_layers == 0) return {};
  // Before a group stood the first workers may have been of another model.
  if (!census_.has_value()) meter_.emplace(first.expert_bytes, config_->experts.copy_bytes_per_second);
  ResidencyLoop::Shape shape = {
      .layers = first.num_moe_layers, .experts = first.num_experts, .devices = static_cast<int>(workers.size())};
  // Of workers with different budgets plans know the smallest.
  const int64_t all = int64_t{shape.layers} * ExpertsOfLayer(config_->placement, shape.experts, shape.devices);
  int64_t slots = all;
  for (const WorkerInfo& worker : workers) {
    if (worker.expert_budget.has_value()) {
      slots = std::min(slots, worker.expert_budget->PartsOf(all, std::max<int64_t>(1, first.expert_bytes)));
    }
  }
  if (slots < all) shape.budget_slots = static_cast<int>(slots);
  meter_->SetBudget(static_cast<double>(slots) / static_cast<double>(all));
  return residency_.Begin(shape, meter_->Costs());
}

// --- ResidencyLoop::Host ---

void EngineLoop::Plan(PlanOrder order) {
  if (planner_ == nullptr) {
    planner_ = std::make_unique<PlannerThread>([this](absl::StatusOr<StagedPlan> plan) {
      Post([this, plan = std::move(plan)]() mutable { residency_.Planned(std::move(plan), MonotonicNow()); });
    });
  }
  planner_->Plan(std::move(order));
}

void EngineLoop::Prepare(const PlacementStage& stage) {
  for (const auto& [id, member] : group_.members()) member.client->PreparePlacement(stage, group_.epoch());
}

void EngineLoop::Drop(int64_t epoch) {
  for (const auto& [id, member] : group_.members()) member.client->DropPlacement(group_.epoch(), epoch);
}

void EngineLoop::Release(int64_t epoch) {
  for (const auto& [id, member] : group_.members()) member.client->ReleasePlacement(group_.epoch(), epoch);
}

void EngineLoop::BreakGroup(const std::string& why) { group_.Break(why, MonotonicNow()); }

// --- what workers say ---

int EngineLoop::RankIn(WorkerId id, int64_t group_epoch) const {
  const auto member = group_.members().find(id);
  const bool current = group_.state() == WorkerGroup::State::kReady && group_epoch == group_.epoch();
  return current && member != group_.members().end() ? member->second.rank : -1;
}

void EngineLoop::OnPlacementPrepared(WorkerId id, int64_t group_epoch, int64_t placement_epoch, std::string error) {
  Post([this, id, group_epoch, placement_epoch, error = std::move(error)] {
    const int rank = RankIn(id, group_epoch);
    if (rank >= 0) residency_.Prepared(rank, placement_epoch, error, MonotonicNow());
  });
}

void EngineLoop::OnPlacementReleased(WorkerId id, int64_t group_epoch, int64_t placement_epoch) {
  Post([this, id, group_epoch, placement_epoch] {
    const int rank = RankIn(id, group_epoch);
    if (rank >= 0) residency_.Released(rank, placement_epoch, MonotonicNow());
  });
}

void EngineLoop::OnExpertReport(WorkerId id, int64_t group_epoch, std::shared_ptr<const ExpertReport> report) {
  Post([this, id, group_epoch, report = std::move(report)] {
    const int rank = RankIn(id, group_epoch);
    if (rank < 0) return;
    // Whoever asks for a copy reads it by the census' layers.
    const bool places = !report->placements.empty();
    if (places && (!census_.has_value() || !Fits(*report, census_->shape(), expert_reports_.size()))) return;
    expert_reports_[static_cast<size_t>(rank)] = {report, MonotonicNow()};
    if (meter_.has_value()) meter_->NoteCopies(rank, report->copied_bytes, report->copy_seconds);
  });
}

void EngineLoop::PlaceExperts(const StepResult& result) {
  if (!census_.has_value()) return;
  const absl::Time start = MonotonicNow();
  meter_->Add(result, *census_);
  residency_.StepDone(result.step, *census_, &*meter_, start);
  metrics_->placement_seconds->Observe(absl::ToDoubleSeconds(MonotonicNow() - start));
}

// --- what is to be seen ---

void EngineLoop::CopyExperts(std::function<void(std::unique_ptr<const ExpertsCopy>)> done) {
  const bool posted = Post([this, done] {
    done(census_.has_value()
             ? std::make_unique<const ExpertsCopy>(ExpertsCopy{*census_, residency_.view(), expert_reports_})
             : nullptr);
  });
  if (!posted) done(nullptr);
}

// --- what workers learned ---

void EngineLoop::CollectProfile(ProfileCollector::Call call) {
  auto shared = std::make_shared<ProfileCollector::Call>(std::move(call));  // with the command, if that runs
  const bool posted = Post([this, shared] {
    if (draining_) return shared->done(Stopping());
    if (group_.state() != WorkerGroup::State::kReady) {
      return shared->done(WithRetry(
          MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, absl::StrCat("no group stands: ", down_reason_)),
          absl::Seconds(1)));
    }
    if (profiles_.busy()) {
      return shared->done(WithRetry(MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL,
                                              "another call asks the workers what they learned: one at a time"),
                                    absl::Seconds(1)));
    }
    profiles_.Start(static_cast<int>(expert_reports_.size()), std::move(*shared), MonotonicNow());
  });
  if (!posted) shared->done(Stopping());
}

void EngineLoop::AskForProfile(int rank, int64_t request, int64_t offset) {
  for (const auto& [id, member] : group_.members()) {
    if (member.rank == rank) member.client->SendProfile(group_.epoch(), request, offset);
  }
}

void EngineLoop::OnProfilePart(WorkerId id, int64_t group_epoch, ProfilePart part) {
  Post([this, id, group_epoch, part = std::move(part)]() mutable {
    const int rank = RankIn(id, group_epoch);
    if (rank >= 0) profiles_.OnPart(rank, std::move(part), MonotonicNow());
  });
}

void EngineLoop::ReportPlacement() {
  const ResidencyView& view = residency_.view();
  for (int outcome = 0; outcome < kNumPlanOutcomes; ++outcome) {
    const auto grown = static_cast<double>(view.plans[outcome] - reported_placement_.plans[outcome]);
    if (grown > 0) metrics_->placement_plans(static_cast<PlanOutcome>(outcome)).Increment(grown);
  }
  metrics_->moved_experts->Increment(static_cast<double>(view.copies - reported_placement_.copies));
  metrics_->moved_expert_bytes->Increment(static_cast<double>(view.bytes - reported_placement_.bytes));
  metrics_->placement_epoch->Set(static_cast<double>(view.epoch));
  reported_placement_ = view;
}

}  // namespace switchyard
