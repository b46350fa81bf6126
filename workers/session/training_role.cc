#include "workers/session/training_role.h"

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/link/training_assignment_codec.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/isa.h"
#include "workers/process/remote_store.h"
#include "workers/tensor/machine_memory.h"
#include "workers/train/job/job_group.h"
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

// What attempts use of the link that they came from, perhaps after its end: a disk may not answer for long.
struct TrainingLink {
  // traffic: borrowed.
  TrainingLink(std::shared_ptr<grpc::Channel> its_channel, Place its_place, LinkSendFn its_send,
               comm::SocketTraffic* traffic)
      : channel(std::move(its_channel)), place(std::move(its_place)), send(std::move(its_send)), group(traffic) {}

  const std::shared_ptr<grpc::Channel> channel;  // shared with the session
  const Place place;
  const LinkSendFn send;
  train::JobGroup group;  // of this link's epochs: the next link's server may count anew
};

// One attempt at a job.
class TrainingAttempt {
 public:
  // role: borrowed.  link: shared with the handler and the link's other attempts.
  TrainingAttempt(TrainingRole* role, std::shared_ptr<TrainingLink> link, v1::StartTraining message)
      : role_(role), link_(std::move(link)), message_(std::move(message)) {}

  int64_t epoch() const { return message_.epoch(); }
  bool ended() const { return ended_; }
  void Stop(jobs::StopKind kind);
  // Ends its waits for other ranks and at the gate.
  void Abort() {
    link_->group.Abort(epoch(), kOver);
    role_->ReleaseGate(epoch());
  }
  // On a thread of its own.
  void Run();

 private:
  jobs::TrainEnd RunCaught();
  jobs::TrainEnd FormAndTrain();
  jobs::TrainEnd Train(const jobs::TrainingAssignment& assignment, comm::Communicator* comm);

  TrainingRole* const role_;
  const std::shared_ptr<TrainingLink> link_;
  const v1::StartTraining message_;
  std::atomic<bool> ended_{false};
  absl::Mutex mu_;
  train::TrainJob* job_ ABSL_GUARDED_BY(mu_) = nullptr;               // while it runs
  jobs::StopKind stop_ ABSL_GUARDED_BY(mu_) = jobs::StopKind::kNone;  // asked for
};

class TrainingHandler final : public LinkHandler {
 public:
  TrainingHandler(TrainingRole* role, std::shared_ptr<TrainingLink> link) : role_(role), link_(std::move(link)) {}
  // In a process that serves as well the attempt ends when it can, and serving goes on with the next link.
  ~TrainingHandler() override {
    if (attempt_ != nullptr) attempt_->Abort();
    role_->SetLink(nullptr);
    if (role_->gate() == nullptr || (attempt_ != nullptr && attempt_->ended())) role_->AwaitEnd();
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
  // Never waits: this thread may have steps to run.
  void Start(const v1::StartTraining& message) {
    attempt_ = std::make_shared<TrainingAttempt>(role_, link_, message);
    role_->Start(attempt_);
  }
  void Stop(const v1::StopTraining& message) {
    if (attempt_ == nullptr || message.epoch() != attempt_->epoch()) return;  // of an attempt that is over
    const absl::StatusOr<jobs::StopKind> kind = link::FromProto(message.kind());
    if (!kind.ok()) return LogWarn("stop training: ", kind.status().message());
    attempt_->Stop(*kind);
  }

  TrainingRole* const role_;
  const std::shared_ptr<TrainingLink> link_;  // shared: with its attempts, and with the role while it stands
  absl::Status fatal_;
  std::shared_ptr<TrainingAttempt> attempt_;  // shared: with its thread and the role; null before the first
};

void TrainingAttempt::Stop(jobs::StopKind kind) {
  absl::MutexLock lock(&mu_);
  stop_ = std::max(stop_, kind);
  if (job_ != nullptr) job_->Stop(kind);
}

void TrainingAttempt::Run() {
  if (role_->gate() != nullptr) MakeWay();
  const jobs::TrainEnd end = RunCaught();
  link_->group.Leave();
  if (role_->gate() == nullptr) role_->metrics_->rank->Set(-1);
  if (!end.status.ok()) {
    LogWarn("job ", message_.job_id(), ", attempt ", message_.attempt(), " ends here: ", end.status.message());
    role_->metrics_->group_faults->Increment();
  }
  ended_ = true;
  v1::LinkRequest ended;
  *ended.mutable_training_ended() = link::ToProto(end, epoch());
  link_->send(std::move(ended));
}

// A standard container that gets no memory ends the attempt, not the process.
jobs::TrainEnd TrainingAttempt::RunCaught() {
  try {
    return FormAndTrain();
  } catch (const std::bad_alloc&) {
    return {jobs::TrainOutcome::kLost, absl::UnavailableError("the worker's memory is full")};
  }
}

jobs::TrainEnd TrainingAttempt::FormAndTrain() {
  absl::StatusOr<jobs::TrainingAssignment> assignment = link::FromProto(message_);
  if (!assignment.ok()) return {jobs::TrainOutcome::kFailed, assignment.status()};
  RemoteStore store(link_->channel, assignment->store_token);
  comm::GroupOptions group;
  group.rank = assignment->rank;
  group.world = assignment->world;
  group.epoch = assignment->epoch;
  group.token = assignment->store_token;
  group.address = link_->place.Toward(assignment->reach);
  group.encrypt_links = assignment->encrypt_links;
  group.deadline = MonotonicNow() + absl::Milliseconds(assignment->form_deadline_ms);
  const absl::StatusOr<comm::Communicator*> comm = link_->group.Form(group, &store);
  if (!comm.ok()) return {jobs::TrainOutcome::kLost, comm.status()};
  if (role_->gate() == nullptr) {  // else they are the serving group's
    role_->metrics_->rank->Set(assignment->rank);
    role_->metrics_->group_epoch->Set(static_cast<double>(assignment->epoch));
  }
  return Train(*assignment, *comm);
}

jobs::TrainEnd TrainingAttempt::Train(const jobs::TrainingAssignment& assignment, comm::Communicator* comm) {
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
  Reporter reporter(assignment.epoch, assignment.job_id, &link_->send, role_->metrics_);
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
    : options_(std::move(options)), metrics_(metrics), pool_(options_.threads, /*spin=*/true, gate()) {}

TrainingRole::~TrainingRole() { AwaitEnd(); }

void TrainingRole::AwaitEnd() {
  if (thread_.joinable()) thread_.join();
  attempt_ = nullptr;  // and its link's connection with it
}

// The server starts none before the last has ended, or is given up; one of an earlier link may still wait for its disk.
void TrainingRole::Start(std::shared_ptr<TrainingAttempt> attempt) {
  const bool overlaps = attempt_ != nullptr && !attempt_->ended();
  if (overlaps) {
    attempt_->Abort();
  } else {
    Enter(attempt->epoch());
  }
  attempt_ = attempt;
  thread_ = std::thread([this, attempt = std::move(attempt), overlaps, before = std::move(thread_)]() mutable {
    if (before.joinable()) before.join();
    if (overlaps) Enter(attempt->epoch());
    attempt->Run();
  });
}

void TrainingRole::SetLink(std::shared_ptr<TrainingLink> link) {
  absl::MutexLock lock(&mu_);
  link_ = std::move(link);
}

// An attempt begins; its threads go through the gate.
void TrainingRole::Enter(int64_t epoch) {
  epoch_ = epoch;
  if (gate() != nullptr) gate()->Hold();
}

// Releases the threads that wait at the gate, so that they see that the attempt is over.
void TrainingRole::Abort(int64_t epoch, const std::string& reason) {
  std::shared_ptr<TrainingLink> link;
  {
    absl::MutexLock lock(&mu_);
    link = link_;
  }
  if (link != nullptr) link->group.Abort(epoch, reason);
  ReleaseGate(epoch);
}

void TrainingRole::ReleaseGate(int64_t epoch) {
  if (gate() != nullptr && epoch_ <= epoch) gate()->Release();
}

void TrainingRole::Describe(fleet::WorkerInfo* out) const {
  out->role = fleet::kRoleTrain;
  out->device = "cpu";
  out->isa = ops::IsaName(ops::CurrentIsa());
}

std::unique_ptr<LinkHandler> TrainingRole::Begin(std::shared_ptr<grpc::Channel> channel, Place place, LinkSendFn send) {
  auto link =
      std::make_shared<TrainingLink>(std::move(channel), std::move(place), std::move(send), metrics_->traffic());
  SetLink(link);
  return std::make_unique<TrainingHandler>(this, std::move(link));
}

}  // namespace switchyard::worker
