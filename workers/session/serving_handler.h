// Handles the server's commands in one session of a worker that serves.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/process/metrics.h"
#include "workers/serving/worker.h"
#include "workers/session/core_share.h"
#include "workers/session/link_role.h"
#include "workers/session/profile_handler.h"
#include "workers/session/report_handler.h"

namespace switchyard::worker {

// Used by the thread that runs the worker.
class Handler final : public LinkHandler {
 public:
  // `served`: whether this process was ever ready; set by this.
  Handler(Worker* worker, WorkerMetrics* metrics, std::shared_ptr<grpc::Channel> channel, Place place, bool* served,
          LinkSendFn send)
      : worker_(worker),
        metrics_(metrics),
        channel_(std::move(channel)),
        place_(std::move(place)),
        served_(served),
        send_(std::move(send)),
        profiles_([worker] { return worker->load_predictor(); },
                  [this](v1::ProfilePart part) {
                    v1::LinkRequest message;
                    *message.mutable_profile_part() = std::move(part);
                    send_(std::move(message));
                  }),
        reports_([this] { return TakeReport(); }, [this](v1::ExpertReport report) { Send(std::move(report)); }),
        graphs_reported_(worker->graph_counters()),
        experts_reported_(worker->expert_counters()),
        cold_reported_(worker->cold_counters()),
        placement_reported_(worker->placement_counters()),
        forecasts_reported_(worker->load_predictor() == nullptr ? absl::ZeroDuration()
                                                                : worker->load_predictor()->spent()) {}

  ~Handler() override { worker_->Leave(); }

  // The process trains as well.  Borrowed; null: it does not.
  void Share(CoreShare* share) {
    share_ = share;
    if (share != nullptr) opened_reported_ = share->gate.opened();
  }

  void Take(const v1::LinkResponse& command) override;
  // Short while steps are under way or profiles are asked for: their end is polled.
  absl::Duration patience() const override;
  const absl::Status& fatal() const override { return fatal_; }

 private:
  void TakeSettings(const v1::EngineOptions& message);
  void Join(const v1::JoinGroup& message);
  void Execute(const v1::StepPlan& message);
  void GiveSlice(const v1::StepPlan& message);
  // Sends the results of the steps that are done, in order.
  void SendDone();
  // Sends profiles that are ready, and reports that are due.
  void Poll();
  // Whether steps are under way.
  bool busy() const { return epoch_ != 0 && worker_->num_started() > 0; }
  // The worker is in the group of this epoch now; 0 = in none.
  void Enter(int64_t epoch);
  void SendOldest();
  placement::ExpertReport TakeReport() const;
  void Send(v1::ExpertReport report);
  void Fault(int64_t epoch, const absl::Status& status);

  Worker* const worker_;
  WorkerMetrics* const metrics_;
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the session
  const Place place_;
  bool* const served_;
  LinkSendFn send_;
  CoreShare* share_ = nullptr;
  absl::Duration opened_reported_;  // of its gate
  ProfileHandler profiles_;
  ReportHandler reports_;
  fleet::EngineSettings settings_;
  int64_t epoch_ = 0;  // 0 = in no group
  int rank_ = 0;       // there
  model::GraphCounters graphs_reported_;
  moe::ExpertOffloadCounters experts_reported_;
  moe::ColdCounters cold_reported_;
  moe::ReplicatedExpertsCounters placement_reported_;
  absl::Duration forecasts_reported_;  // of RowLoadPredictor::spent
  int64_t num_steps_ = 0;
  std::deque<batching::StepPlan> started_;  // heads of the steps under way
  absl::Status fatal_;
};

}  // namespace switchyard::worker
