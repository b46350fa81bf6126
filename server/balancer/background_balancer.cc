#include "server/balancer/background_balancer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"

namespace switchyard::server {
namespace {

// Measured times scatter, and a migration has a cost: within a factor of 2 decisions are nearly the same.
bool Alike(const placement::MoveCosts& a, const placement::MoveCosts& b) {
  const auto near = [](int64_t x, int64_t y) { return x / 2 <= y && y / 2 <= x; };
  return near(a.copy_ps, b.copy_ps) && near(a.row_ps, b.row_ps) && near(a.layer_ps, b.layer_ps);
}

}  // namespace

absl::string_view PlanOutcomeName(PlanOutcome outcome) {
  constexpr absl::string_view kNames[kNumPlanOutcomes] = {"committed", "aborted", "nothing_to_do"};
  return kNames[static_cast<int>(outcome)];
}

BackgroundBalancer::BackgroundBalancer(const placement::PlacementSettings& settings, Host* host)
    : settings_(settings), host_(host) {
  view_.settings = settings;
}

placement::GroupPlacement BackgroundBalancer::Begin(const Shape& shape, const placement::MoveCosts& costs) {
  costs_ = reported_costs_ = costs;
  epoch_ = view_.epoch;  // the ranks begin with it
  steps_since_costs_ = 0;
  // A group that never served may have had another model.
  if (view_.layers.empty() || shape != shape_) {
    SY_CHECK_EQ(view_.epoch, 0);
    shape_ = shape;
    // Neighbouring experts on a device.
    const int slots = placement::ResidentSlots(settings_, shape.experts, shape.devices);
    const int own = placement::ResidentSlots({}, shape.experts, shape.devices);
    view_.layers.assign(static_cast<size_t>(shape.layers),
                        std::make_shared<const placement::Placement>(
                            placement::ContiguousPlacement(shape.experts, shape.devices, slots - own)));
    view_.plan = nullptr;
  }
  placement::GroupPlacement placement;
  placement.epoch = view_.epoch;
  placement.costs = costs;
  if (view_.epoch == 0) return placement;
  placement.residents = CopyLayers(view_.layers);
  return placement;
}

void BackgroundBalancer::GroupDown(const std::string& reason, absl::Time now) {
  up_ = false;
  steps_since_plan_ = 0;
  if (planning_ && !discard_) {
    discard_ = true;
    EndPlan(PlanOutcome::kAborted, absl::StrCat("the group was lost: ", reason), now);
  }
  if (plan_ == nullptr) return migration_.reset();
  // The next group begins with the committed placement, so no rank has to release anything.
  const bool in_force = migration_->state() == placement::EpochState::kCommitted ||
                        migration_->state() == placement::EpochState::kReleasing;
  if (in_force && migration_idx_ + 1 == plan_->migrations.size()) return EndPlan(PlanOutcome::kCommitted, "", now);
  AbortPlan(absl::StrCat("the group was lost: ", reason), now);
}

int64_t BackgroundBalancer::placement_epoch() const {
  return migration_.has_value() ? static_cast<int64_t>(migration_->placement_epoch()) : epoch_;
}

void BackgroundBalancer::StepPlanned(int64_t step, absl::Time now) {
  if (!migration_.has_value()) return;
  const bool waited = migration_->state() == placement::EpochState::kReady;
  const placement::EpochDirective directive = migration_->StepPlanned(step, migration_->placement_epoch());
  if (waited) CommitMigration();
  Handle(directive, now);
}

void BackgroundBalancer::StepDone(int64_t step, const popularity::ExpertLoadStats& load_stats,
                                  PlacementCostMonitor* meter, absl::Time now) {
  if (migration_.has_value()) Handle(migration_->StepDone(step), now);
  if (shape_.devices < 2 || !up_) return;
  ++steps_since_costs_;
  if (settings_.rebalances() && ++steps_since_plan_ >= settings_.rebalance_steps && idle())
    StartPlan(load_stats, meter);
  const bool prices =
      settings_.mode == placement::PlacementMode::kAgreed || settings_.mode == placement::PlacementMode::kAuto;
  if (prices && idle()) ReportCosts(meter, now);
}

void BackgroundBalancer::ReportCosts(PlacementCostMonitor* meter, absl::Time now) {
  const bool measured = reported_costs_.layer_ps > 0;
  if (steps_since_costs_ < (measured ? kCostsApart : kFirstCosts)) return;
  if (meter->row_seconds() <= 0 || meter->layer_seconds() <= 0) return;
  steps_since_costs_ = 0;
  costs_ = meter->Costs();
  if (!settings_.rebalances()) meter->Fade();  // otherwise StartPlan does
  if (measured && Alike(costs_, reported_costs_)) return;
  placement::Migration migration;  // without moves
  migration.epoch = next_epoch_++;
  migration.costs = costs_;
  SendMigration(std::move(migration), now);
}

void BackgroundBalancer::StartPlan(const popularity::ExpertLoadStats& load_stats, PlacementCostMonitor* meter) {
  if (!meter->HasProfiles(load_stats)) return;
  steps_since_plan_ = 0;
  costs_ = meter->Costs();
  planning_ = true;
  discard_ = false;
  PlanOrder order = {.load_stats = load_stats,
                     .meter = *meter,
                     .present = view_.layers,
                     .layer_slots = placement::ResidentSlots(settings_, shape_.experts, shape_.devices) - 1,
                     .horizon_steps = std::max(kShortestHorizon, settings_.rebalance_steps),
                     .next_epoch = next_epoch_};
  meter->Fade();
  host_->Plan(std::move(order));
}

void BackgroundBalancer::Planned(absl::StatusOr<PendingMigration> plan, absl::Time now) {
  SY_CHECK(planning_);
  planning_ = false;
  if (std::exchange(discard_, false)) return;
  if (!plan.ok()) return EndPlan(PlanOutcome::kAborted, std::string(plan.status().message()), now);
  plan_ = std::make_shared<const placement::ResidencyPlan>(std::move(plan->plan));
  after_ = std::move(plan->after);
  migration_idx_ = 0;
  plan_copies_ = plan_bytes_ = 0;
  if (plan_->migrations.empty()) return EndPlan(PlanOutcome::kNothingToDo, "", now);
  LogInfo("experts: a plan of ", plan_->copies, " copies in ", plan_->migrations.size(), " migrations, ",
          plan_->bytes >> 10, " KiB");
  next_epoch_ = static_cast<int64_t>(plan_->epoch + plan_->migrations.size());
  view_.migrations = static_cast<int>(plan_->migrations.size());
  StartMigration(now);
}

void BackgroundBalancer::StartMigration(absl::Time now) {
  const placement::ResidencyMigration& moves = plan_->migrations[migration_idx_];
  placement::Migration migration;
  migration.epoch = static_cast<int64_t>(plan_->epoch + migration_idx_);
  migration.arrivals = moves.arrivals;
  migration.departures = moves.departures;
  migration.costs = costs_;
  SendMigration(std::move(migration), now);
}

void BackgroundBalancer::SendMigration(placement::Migration migration, absl::Time now) {
  migration_.emplace(static_cast<uint64_t>(migration.epoch), static_cast<uint64_t>(epoch_), shape_.devices,
                     now + kPatience);
  release_by_ = absl::InfiniteFuture();
  host_->Prepare(migration);
}

void BackgroundBalancer::CommitMigration() {
  epoch_ = static_cast<int64_t>(migration_->epoch());
  reported_costs_ = costs_;
  if (plan_ == nullptr) {
    return LogInfo("experts: moves are weighed by what was measured: a copy of ", costs_.copy_ps / 1'000'000, " us, ",
                   costs_.row_ps / 1000, " ns a row more, ", costs_.layer_ps / 1'000'000, " us a layer");
  }
  const placement::ResidencyMigration& migration = plan_->migrations[migration_idx_];
  view_.layers = std::move(after_[migration_idx_]);
  view_.epoch = epoch_;
  view_.plan = nullptr;
  const auto copies = static_cast<int64_t>(migration.arrivals.size());
  const int64_t bytes = plan_->copies > 0 ? plan_->bytes / plan_->copies * copies : 0;
  plan_copies_ += copies;
  plan_bytes_ += bytes;
  ++view_.migrations_in_use;
  view_.copies += copies;
  view_.bytes += bytes;
}

void BackgroundBalancer::Handle(placement::EpochDirective directive, absl::Time now) {
  switch (directive) {
    case placement::EpochDirective::kNone:
    case placement::EpochDirective::kUseFromNextStep:  // see placement_epoch()
      return;
    case placement::EpochDirective::kRelease:
      release_by_ = now + kPatience;
      return host_->Release(static_cast<int64_t>(migration_->epoch()));
    case placement::EpochDirective::kDropArrivals: {
      const std::string why = migration_->reason();
      host_->Drop(static_cast<int64_t>(migration_->epoch()));
      return AbortPlan(why, now);
    }
  }
}

void BackgroundBalancer::Prepared(int rank, int64_t epoch, const std::string& error, absl::Time now) {
  if (!migration_.has_value() || static_cast<uint64_t>(epoch) != migration_->epoch()) return;
  Handle(error.empty() ? migration_->RankReady(rank, /*checksum_ok=*/true) : migration_->RankFailed(rank, error), now);
}

void BackgroundBalancer::Released(int rank, int64_t epoch, absl::Time now) {
  if (!migration_.has_value() || static_cast<uint64_t>(epoch) != migration_->epoch()) return;
  Handle(migration_->RankReleased(rank), now);
  if (migration_->state() != placement::EpochState::kDone) return;
  if (plan_ == nullptr) return migration_.reset();
  if (++migration_idx_ == plan_->migrations.size()) return EndPlan(PlanOutcome::kCommitted, "", now);
  StartMigration(now);
}

void BackgroundBalancer::Tick(absl::Time now) {
  if (!migration_.has_value()) return;
  if (migration_->state() == placement::EpochState::kReleasing && now >= release_by_) {
    release_by_ = absl::InfiniteFuture();
    return host_->BreakGroup(absl::StrCat("not all ranks released placement ", migration_->epoch(), " within ",
                                          absl::FormatDuration(kPatience)));
  }
  Handle(migration_->Tick(now), now);
}

void BackgroundBalancer::AbortPlan(const std::string& why, absl::Time now) {
  if (plan_ == nullptr) {
    steps_since_costs_ = kFirstCosts - kCostsApart;  // ranks that cannot adopt costs are not asked at every step
    LogWarn("experts: not all ranks have taken up measured costs: ", why);
    return migration_.reset();
  }
  EndPlan(PlanOutcome::kAborted,
          absl::StrCat("after ", view_.migrations_in_use, " of ", view_.migrations, " migrations: ", why), now);
}

void BackgroundBalancer::EndPlan(PlanOutcome outcome, const std::string& reason, absl::Time now) {
  if (outcome != PlanOutcome::kAborted) view_.plan = plan_;
  if (outcome == PlanOutcome::kAborted) LogWarn("experts: a plan was aborted: ", reason);
  if (outcome == PlanOutcome::kCommitted) LogInfo("experts: placement ", view_.epoch, " is in use");
  view_.outcome = outcome;
  view_.reason = reason;
  view_.ended = now;
  view_.last_copies = plan_copies_;
  view_.last_bytes = plan_bytes_;
  plan_copies_ = plan_bytes_ = 0;
  view_.migrations = view_.migrations_in_use = 0;
  ++view_.plans[static_cast<size_t>(outcome)];
  plan_ = nullptr;
  after_.clear();
  migration_.reset();
}

}  // namespace switchyard::server
