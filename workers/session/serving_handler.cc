#include "workers/session/serving_handler.h"

#include <algorithm>
#include <utility>

#include "proto/link/fleet_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "workers/model/config/memory_plan.h"
#include "workers/process/remote_store.h"

namespace switchyard::worker {
namespace {

// Errors of the model's files or of the memory, as opposed to those of the network and of other workers.
bool CannotServe(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) || absl::IsDataLoss(status) ||
         absl::IsNotFound(status) || absl::IsUnimplemented(status);
}

constexpr absl::Duration kLookForProfiles = absl::Milliseconds(1);
constexpr int64_t kReportForecasts = 16;  // steps
constexpr absl::Duration kLongestSlice = absl::Minutes(1);

}  // namespace

void Handler::Take(const v1::LinkResponse& command) {
  SendDone();
  Poll();
  if (command.has_registered()) {
    TakeSettings(command.registered().options());
  } else if (command.has_join_group()) {
    Join(command.join_group());
  } else if (command.has_step_plan()) {
    Execute(command.step_plan());
  } else if (command.has_send_profile()) {
    profiles_.Ask(command.send_profile());
  }
  SendDone();
}

void Handler::TakeSettings(const v1::EngineOptions& message) {
  absl::StatusOr<fleet::EngineSettings> settings = link::FromProto(message);
  if (!settings.ok()) {
    fatal_ = absl::FailedPreconditionError(settings.status().message());
    return;
  }
  settings_ = *std::move(settings);
  settings_.train_yield_ms = 0;  // does not decide what the worker loads, so a change of it must not load anew
}

void Handler::Join(const v1::JoinGroup& message) {
  worker_->Leave();
  started_.clear();
  Enter(0);
  const absl::StatusOr<fleet::RankAssignment> received = link::FromProto(message);
  if (!received.ok()) return Fault(message.epoch(), received.status());
  const fleet::RankAssignment& assignment = *received;
  RemoteStore store(channel_, assignment.store_token);
  const auto send_progress = [this](const fleet::LoadProgress& progress) {
    v1::LinkRequest request;
    *request.mutable_load_progress() = link::ToProto(progress);
    return send_(std::move(request));
  };
  const absl::Status status =
      worker_->Join(assignment, place_.Toward(assignment.reach), settings_, &store, send_progress);
  if (CannotServe(status) && !*served_) {
    fatal_ = absl::FailedPreconditionError(status.message());
    return;
  }
  if (!status.ok()) return Fault(assignment.epoch, status);
  if (share_ != nullptr) {
    share_->kv_cache_bytes = int64_t{worker_->num_kv_blocks()} * settings_.block_size * worker_->kv_bytes_per_token();
  }
  rank_ = assignment.rank;
  Enter(assignment.epoch);
  *served_ = true;
  metrics_->rank->Set(assignment.rank);
  metrics_->group_epoch->Set(static_cast<double>(assignment.epoch));
  metrics_->weight_bytes->Set(static_cast<double>(worker_->weight_bytes()));
  metrics_->shared_weight_bytes->Set(static_cast<double>(worker_->shared_weight_bytes()));
  metrics_->kv_blocks->Set(worker_->num_kv_blocks());
  metrics_->ObserveGraphs(worker_->graph_counters(), &graphs_reported_);
  metrics_->device_bytes->Set(static_cast<double>(worker_->device_bytes()));
  v1::LinkRequest ready;
  *ready.mutable_group_ready() = link::ToProto(fleet::GroupReady{.epoch = assignment.epoch,
                                                                 .num_kv_blocks = worker_->num_kv_blocks(),
                                                                 .experts_in_place = worker_->experts_in_place(),
                                                                 .links = worker_->links()});
  send_(std::move(ready));
}

void Handler::GiveSlice(const v1::StepPlan& message) {
  if (share_ == nullptr || busy()) return;
  share_->gate.OpenFor(std::min(absl::Duration(absl::Milliseconds(message.train_slice_ms())), kLongestSlice));
  metrics_->ObserveOpened(share_->gate.opened(), &opened_reported_);
}

void Handler::Execute(const v1::StepPlan& message) {
  if (message.group_epoch() != epoch_) return;  // of a group that is over
  if (message.train_slice_ms() > 0) return GiveSlice(message);
  // It was shut when the plan came, but a slice may have been taken since.
  if (share_ != nullptr) share_->gate.Shut();
  while (epoch_ != 0 && !worker_->can_start()) SendOldest();
  batching::StepPlan head;
  absl::Duration limit;
  const batching::RankPlan part = link::FromProto(message, &head, &limit);
  // Its gates wait for what is under way, on the host: reported now, that does not count as this step's time.  And the
  // masks that it waits for may follow from those results.
  const bool masked = std::any_of(part.items.begin(), part.items.end(), [](const auto& item) { return item.masked; });
  while (epoch_ != 0 && busy() && ((head.decides && worker_->balancer() != nullptr) || masked)) SendOldest();
  if (epoch_ == 0) return;
  if (const absl::Status status = worker_->Start(head, part, limit); !status.ok()) {
    return Fault(epoch_, status);
  }
  started_.push_back(std::move(head));
}

void Handler::SendDone() {
  while (busy() && worker_->IsDone()) SendOldest();
}

void Handler::SendOldest() {
  absl::StatusOr<batching::RankResult> result = worker_->Finish();
  if (!result.ok()) return Fault(epoch_, result.status());
  const batching::StepPlan head = std::move(started_.front());
  started_.pop_front();
  metrics_->ObserveStep(*result);
  metrics_->ObserveGraphs(worker_->graph_counters(), &graphs_reported_);
  metrics_->device_bytes->Set(static_cast<double>(worker_->device_bytes()));
  metrics_->ObserveExperts(worker_->expert_counters(), &experts_reported_);
  metrics_->ObserveCold(worker_->cold_counters(), &cold_reported_);
  metrics_->ObservePlacement(worker_->placement_counters(), &placement_reported_);
  // Means of many steps, so not reported after each.
  if (worker_->load_predictor() != nullptr && num_steps_++ % kReportForecasts == 0)
    metrics_->ObserveForecasts(*worker_->load_predictor(), &forecasts_reported_);
  for (v1::StepPart& piece : link::CutIntoParts(head, &*result)) {
    v1::LinkRequest before;
    *before.mutable_step_part() = std::move(piece);
    send_(std::move(before));
  }
  v1::LinkRequest reply;
  *reply.mutable_step_result() = link::ToProto(head, *result);
  send_(std::move(reply));
  if (worker_->load_predictor() != nullptr || worker_->balancer() != nullptr) reports_.StepDone();
}

void Handler::Enter(int64_t epoch) {
  epoch_ = epoch;
  profiles_.Enter(epoch, rank_);
  reports_.Enter(epoch);
}

void Handler::Poll() {
  profiles_.Poll();
  reports_.Poll(MonotonicNow());
}

placement::ExpertReport Handler::TakeReport() const {
  placement::ExpertReport report = ReportOf(worker_->load_predictor(), rank_ == 0 ? worker_->balancer() : nullptr);
  if (const moe::TimedCopier* const copier = worker_->copier(); copier != nullptr) {
    report.copied_bytes = copier->bytes();
    report.copy_seconds = copier->seconds();
  }
  return report;
}

void Handler::Send(v1::ExpertReport report) {
  v1::LinkRequest message;
  *message.mutable_expert_report() = std::move(report);
  send_(std::move(message));
}

absl::Duration Handler::patience() const {
  if (busy()) return absl::ZeroDuration();
  return std::min(profiles_.waiting() ? kLookForProfiles : absl::InfiniteDuration(), reports_.patience(MonotonicNow()));
}

void Handler::Fault(int64_t epoch, const absl::Status& status) {
  LogWarn("epoch ", epoch, " ends here: ", status.message());
  metrics_->group_faults->Increment();
  metrics_->rank->Set(-1);
  metrics_->ObserveExperts(worker_->expert_counters(), &experts_reported_);
  worker_->Leave();
  started_.clear();
  Enter(0);
  v1::LinkRequest fault;
  fault.mutable_group_fault()->set_epoch(epoch);
  fault.mutable_group_fault()->set_message(std::string(status.message()));
  send_(std::move(fault));
  if (worker_->device_lost()) fatal_ = absl::UnavailableError(status.message());
}

}  // namespace switchyard::worker
