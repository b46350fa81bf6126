#include "workers/session/training_role.h"

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/link/training_assignment_codec.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/isa.h"
#include "workers/process/remote_store.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/job/train_job.h"

namespace switchyard::worker {
namespace {

// The time limit of a step or a disk where serving decides when training runs.
constexpr absl::Duration kLimitBehindGate = absl::Hours(24 * 30);
constexpr char kOver[] = "the attempt is over";

jobs::TrainProgress ProgressOf(const train::StepProgress& progress) {
  const train::StepReport& report = progress.report;
  return {.step = progress.step,
          .loss = report.loss,
          .balance_loss = report.balance_loss,
          .z_loss = report.z_loss,
          .learning_rate = progress.learning_rate,
          .gradient_norm = report.gradient_norm,
          .tokens = progress.tokens,
          .tokens_per_second = progress.tokens_per_second,
          .seconds = {.total = progress.total_seconds,
                      .forward = report.seconds.forward,
                      .backward = report.seconds.backward,
                      .experts = report.seconds.experts + report.seconds.backward_experts,
                      .all_to_all = report.seconds.all_to_all,
                      .all_reduce = report.seconds.all_reduce,
                      .optimizer = report.seconds.optimizer,
                      .data = progress.data_seconds},
          .dropped_rows = report.dropped_rows,
          .dead_experts = report.dead_experts,
          .packing = progress.packing,
          .chunks = report.skipped ? 0 : report.chunks,
          .padding = progress.padding,
          .total_steps = progress.total_steps,
          .skipped = report.skipped,
          .skipped_steps = progress.skipped_steps,
          .preferences = report.preferences};
}

// Reports progress to the server and to the metrics.  Used by the attempt's thread.
class Reporter final : public train::TrainListener {
 public:
  Reporter(int64_t epoch, const std::string& job_id, const LinkSendFn* send, WorkerMetrics* metrics)
      : epoch_(epoch), job_id_(job_id), send_(*send), metrics_(metrics) {}

  void Started(int64_t step, const std::vector<std::string>& warnings) override {
    for (const std::string& warning : warnings) LogWarn("job ", job_id_, ": ", warning);
    v1::LinkRequest message;
    v1::TrainingStarted* const out = message.mutable_training_started();
    out->set_epoch(epoch_);
    out->set_step(step);
    out->mutable_warnings()->Add(warnings.begin(), warnings.end());
    send_(std::move(message));
  }
  void StepDone(const train::StepProgress& progress) override {
    metrics_->ObserveTraining(progress);
    v1::LinkRequest message;
    message.mutable_training_step()->set_epoch(epoch_);
    *message.mutable_training_step()->mutable_progress() = link::ToProto(ProgressOf(progress));
    send_(std::move(message));
  }
  void Evaluated(const jobs::EvaluationReport& report) override {
    v1::LinkRequest message;
    *message.mutable_training_evaluated() = link::ToProto(report, epoch_);
    send_(std::move(message));
  }
  void Saved(const train::SavedStep& saved) override {
    metrics_->ObserveSaved(saved);
    v1::LinkRequest message;
    message.mutable_training_saved()->set_epoch(epoch_);
    *message.mutable_training_saved()->mutable_checkpoint() =
        link::ToProto(jobs::SavedCheckpoint{.step = saved.step,
                                            .folder = absl::StrCat(job_id_, "/", saved.folder),
                                            .bytes = saved.bytes,
                                            .seconds = saved.seconds,
                                            .saved_unix_ms = absl::ToUnixMillis(absl::Now())});
    send_(std::move(message));
  }
  void Note(const std::string& text) override {
    v1::LinkRequest message;
    message.mutable_training_note()->set_epoch(epoch_);
    message.mutable_training_note()->set_text(text);
    send_(std::move(message));
  }

 private:
  const int64_t epoch_;
  const std::string& job_id_;
  const LinkSendFn& send_;
  WorkerMetrics* const metrics_;
};

}  // namespace

class TrainingHandler final : public LinkHandler {
 public:
  TrainingHandler(TrainingRole* role, std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send)
      : role_(role), channel_(std::move(channel)), place_(std::move(place)), send_(std::move(send)) {}
  ~TrainingHandler() override {
    if (!attempt_.joinable()) return;
    role_->Abort(epoch_, kOver);
    attempt_.join();
  }

  void Take(const v1::LinkResponse& command) override {
    if (command.has_registered()) {
      role_->registered_ = true;
    } else if (command.has_start_training()) {
      Start(command.start_training());
    } else if (command.has_stop_training()) {
      Stop(command.stop_training());
    }
  }
  absl::Duration patience() const override { return absl::InfiniteDuration(); }
  const absl::Status& fatal() const override { return fatal_; }

 private:
  void Start(const v1::StartTraining& message);
  void Stop(const v1::StopTraining& message);
  // These run on the attempt's thread.
  jobs::TrainEnd RunCaught(const v1::StartTraining& message);
  jobs::TrainEnd Run(const v1::StartTraining& message);
  jobs::TrainEnd Train(const jobs::TrainingAssignment& assignment, comm::Communicator* comm);

  TrainingRole* const role_;
  const std::shared_ptr<grpc::Channel> channel_;  // shared with the session
  const Place place_;
  const LinkSendFn send_;
  absl::Status fatal_;
  std::thread attempt_;
  std::shared_ptr<std::atomic<bool>> running_;  // shared with its thread
  int64_t epoch_ = 0;                           // of the attempt, also of one that has ended
  absl::Mutex mu_;
  train::TrainJob* job_ ABSL_GUARDED_BY(mu_) = nullptr;               // while it runs
  jobs::StopKind stop_ ABSL_GUARDED_BY(mu_) = jobs::StopKind::kNone;  // asked for since Start
};

// Never waits: this thread may have steps to run.
void TrainingHandler::Start(const v1::StartTraining& message) {
  // The server starts none before the last has ended, or is given up.
  const bool overlaps = running_ != nullptr && *running_;
  if (overlaps) {
    role_->Abort(epoch_, kOver);
  } else {
    role_->Enter(message.epoch());
  }
  epoch_ = message.epoch();
  {
    absl::MutexLock lock(&mu_);
    stop_ = jobs::StopKind::kNone;
  }
  running_ = std::make_shared<std::atomic<bool>>(true);
  attempt_ = std::thread([this, message, overlaps, running = running_, before = std::move(attempt_)]() mutable {
    if (before.joinable()) before.join();
    if (overlaps) role_->Enter(message.epoch());
    if (role_->gate() != nullptr) MakeWay();
    const jobs::TrainEnd end = RunCaught(message);
    role_->group_.Leave();
    if (role_->gate() == nullptr) role_->metrics_->rank->Set(-1);
    if (!end.status.ok()) {
      LogWarn("job ", message.job_id(), ", attempt ", message.attempt(), " ends here: ", end.status.message());
      role_->metrics_->group_faults->Increment();
    }
    *running = false;
    v1::LinkRequest ended;
    *ended.mutable_training_ended() = link::ToProto(end, message.epoch());
    send_(std::move(ended));
  });
}

void TrainingHandler::Stop(const v1::StopTraining& message) {
  if (message.epoch() != epoch_) return;  // of an attempt that is over
  const absl::StatusOr<jobs::StopKind> kind = link::FromProto(message.kind());
  if (!kind.ok()) return LogWarn("stop training: ", kind.status().message());
  absl::MutexLock lock(&mu_);
  stop_ = std::max(stop_, *kind);
  if (job_ != nullptr) job_->Stop(*kind);
}

// A standard container that gets no memory ends the attempt, not the process.
jobs::TrainEnd TrainingHandler::RunCaught(const v1::StartTraining& message) {
  try {
    return Run(message);
  } catch (const std::bad_alloc&) {
    return {jobs::TrainOutcome::kLost, absl::ResourceExhaustedError("the worker's memory is full")};
  }
}

jobs::TrainEnd TrainingHandler::Run(const v1::StartTraining& message) {
  absl::StatusOr<jobs::TrainingAssignment> assignment = link::FromProto(message);
  if (!assignment.ok()) return {jobs::TrainOutcome::kFailed, assignment.status()};
  RemoteStore store(channel_, assignment->store_token);
  comm::GroupOptions group;
  group.rank = assignment->rank;
  group.world = assignment->world;
  group.epoch = assignment->epoch;
  group.token = assignment->store_token;
  group.address = place_.Toward(assignment->reach);
  group.encrypt_links = assignment->encrypt_links;
  group.deadline = absl::Now() + absl::Milliseconds(assignment->form_deadline_ms);
  const absl::StatusOr<comm::Communicator*> comm = role_->group_.Form(group, &store);
  if (!comm.ok()) return {jobs::TrainOutcome::kLost, comm.status()};
  if (role_->gate() == nullptr) {  // else they are the serving group's
    role_->metrics_->rank->Set(assignment->rank);
    role_->metrics_->group_epoch->Set(static_cast<double>(assignment->epoch));
  }
  return Train(*assignment, *comm);
}

jobs::TrainEnd TrainingHandler::Train(const jobs::TrainingAssignment& assignment, comm::Communicator* comm) {
  train::TrainJobInput input = {.spec = assignment.spec,
                                .job_id = assignment.job_id,
                                .attempt = assignment.attempt,
                                .origin = assignment.origin,
                                .data = assignment.data,
                                .evaluation = assignment.evaluation};
  input.dataset_root = role_->options_.dataset_root;
  input.checkpoint_root = role_->options_.checkpoint_root;
  input.offload_dir = role_->options_.offload_dir;
  input.software = role_->options_.software;
  input.memory = [] { return ReadMachineMemory(); };
  if (role_->options_.share != nullptr) {
    input.promised_memory = [share = role_->options_.share] { return share->kv_cache_bytes.load(); };
  }
  if (role_->gate() != nullptr) input.step_limit = input.disk_limit = kLimitBehindGate;
  Reporter reporter(assignment.epoch, assignment.job_id, &send_, role_->metrics_);
  train::TrainJob job(std::move(input), Stream::OnCpu(&role_->pool_), comm, &reporter);
  {
    absl::MutexLock lock(&mu_);
    job_ = &job;
    job.Stop(stop_);
  }
  jobs::TrainEnd end = job.Run();
  absl::MutexLock lock(&mu_);
  job_ = nullptr;
  return end;
}

TrainingRole::TrainingRole(TrainingOptions options, WorkerMetrics* metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      pool_(options_.threads, /*spin=*/true, gate()),
      group_(metrics->traffic()) {}

// An attempt begins; its threads go through the gate.
void TrainingRole::Enter(int64_t epoch) {
  epoch_ = epoch;
  if (gate() != nullptr) gate()->Hold();
}

// Releases the threads that wait at the gate, so that they see that the attempt is over.
void TrainingRole::Abort(int64_t epoch, const std::string& reason) {
  group_.Abort(epoch, reason);
  if (gate() != nullptr && epoch_ <= epoch) gate()->Release();
}

void TrainingRole::Describe(fleet::WorkerInfo* out) const {
  out->role = fleet::kRoleTrain;
  out->device = "cpu";
  out->isa = ops::IsaName(ops::CurrentIsa());
}

std::unique_ptr<LinkHandler> TrainingRole::Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) {
  group_.ForgetEpochs();
  return std::make_unique<TrainingHandler>(this, std::move(channel), std::move(place), std::move(send));
}

}  // namespace switchyard::worker
