// A job manager with a clock that tests move, workers that only record their commands, and a journal in memory that
// survives the manager.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "server/jobs/job_manager.h"

namespace switchyard::server {

// The reason that a client sees with this status.
inline std::string ReasonIn(const absl::Status& status) { return rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason; }

class MemoryJournal final : public JobJournal {
 public:
  absl::StatusOr<std::vector<Job>> Load() override {
    std::vector<Job> jobs;
    for (const auto& [sequence, job] : kept) jobs.push_back(job);
    return jobs;
  }
  absl::Status Save(const Job& job) override {
    if (!error.ok()) return error;
    kept[job.sequence] = job;
    // Fields that are not kept.
    kept[job.sequence].note.clear();
    kept[job.sequence].seconds_left = 0;
    ++saves;
    return absl::OkStatus();
  }
  absl::Status Delete(const Job& job) override {
    if (!error.ok()) return error;
    kept.erase(job.sequence);
    deleted.insert(job.id);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> DeletedJobs() override {
    return std::vector<std::string>(deleted.begin(), deleted.end());
  }
  absl::Status FolderRemoved(const std::string& id) override {
    deleted.erase(id);
    return absl::OkStatus();
  }

  std::map<int64_t, Job> kept;
  std::set<std::string> deleted;
  absl::Status error;
  int saves = 0;
};

class FakeHost final : public TrainingHost {
 public:
  absl::Time Now() override { return now; }
  int64_t UnixMs() override { return absl::ToUnixMillis(now); }
  std::string DrawHex() override { return absl::StrCat(absl::Hex(++drawn, absl::kZeroPad12), "0123456789abcdef0123"); }
  void OpenStore(const std::string& token) override { stores.insert(token); }
  void CloseStore(const std::string& token) override { stores.erase(token); }
  void Prepare(const std::string& job_id, PackRequest request) override { packs[job_id].push_back(std::move(request)); }
  void CancelPrepare(const std::string& job_id) override { cancelled.push_back(job_id); }
  void KillWorker(int local_index, int64_t) override { killed.push_back(local_index); }
  std::string EndOf(int, int64_t) override { return how_ended; }
  absl::Duration ShareServing(bool wanted) override {
    serving_wanted = wanted;
    return slices_given;
  }
  std::vector<int64_t> CheckpointsOf(const std::string&) override { return checkpoints; }
  bool HasUnread(const fleet::WorkerInfo&) override { return has_unread; }

  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  uint64_t drawn = 0;
  std::set<std::string> stores;
  std::map<std::string, std::vector<PackRequest>> packs;
  std::vector<std::string> cancelled;
  std::vector<int> killed;
  std::string how_ended;
  bool serving_wanted = false;  // whether serving workers are to train
  absl::Duration slices_given;
  bool has_unread = false;
  std::vector<int64_t> checkpoints;
};

class FakeTrainer final : public TrainerClient {
 public:
  void Start(const jobs::TrainingAssignment& assignment) override { assignments.push_back(assignment); }
  void StopTraining(int64_t epoch, jobs::StopKind kind) override {
    commands.push_back(absl::StrCat(kind == jobs::StopKind::kSave ? "save " : "now ", epoch));
  }
  void AbortTraining(int64_t epoch, const std::string& reason) override {
    commands.push_back(absl::StrCat("abort ", epoch));
    last_reason = reason;
  }
  void Close(const absl::Status& status) override { closed = status; }

  int64_t epoch() const { return assignments.empty() ? -1 : assignments.back().epoch; }
  std::vector<jobs::TrainingAssignment> assignments;
  std::vector<std::string> commands;
  std::string last_reason;
  absl::Status closed;
};

class RecordingSink final : public ProgressSink {
 public:
  void OnStarted(const Job& job, int64_t step) override { Add(job, absl::StrCat("started ", step)); }
  void OnStep(const Job& job, const jobs::TrainProgress& progress) override {
    Add(job, absl::StrCat("step ", progress.step));
  }
  void OnEvaluated(const Job& job, const jobs::EvaluationResult& result) override {
    Add(job, absl::StrCat("evaluated ", result.step));
  }
  void OnEnded(const Job& job) override { Add(job, absl::StrCat("ended ", jobs::JobStateName(job.state))); }

  std::vector<std::string> lines;

 private:
  void Add(const Job&, std::string line) { lines.push_back(std::move(line)); }
};

class ManagerTest : public testing::Test {
 protected:
  ManagerTest() { Configure(2); }

  void Configure(int workers) {
    options_.trainers.configured = workers;
    options_.trainers.tokens = {.shared = "token", .local = "token"};
    options_.max_losses = 3;
    Restart();
  }
  // Replaces the manager by another one that reads the journal, as after a kill; the workers are gone, too.
  void Restart() {
    manager_ = std::make_unique<JobManager>(options_, &journal_, &host_, &sink_);
    trainers_.clear();
    host_.stores.clear();
    host_.packs.clear();
    const absl::Status status = manager_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  FakeTrainer* ConnectServing(WorkerId id) { return Connect(id, "avx2", true); }
  FakeTrainer* Connect(WorkerId id, const std::string& isa = "avx2", bool serves = false) {
    fleet::WorkerInfo info;
    info.incarnation = absl::StrCat("w", id);
    info.join_token = "token";
    info.local_index = static_cast<int>(id);
    info.pid = 1000 + id;
    info.host = "here";
    info.device = "cpu";
    info.isa = isa;
    info.also_trains = serves;
    trainers_[id] = std::make_shared<FakeTrainer>();
    manager_->runs().OnTrainer(id, trainers_[id], info);
    return trainers_[id].get();
  }
  static jobs::JobSpec Spec(int workers = 2) {
    jobs::JobSpec spec;
    spec.architecture = "demo";
    spec.datasets = {"a.bin"};
    spec.steps = 100;
    spec.sequence_length = 8;
    spec.batch_sequences = 4;
    spec.workers = workers;
    spec.optimizer.schedule.total_steps = 100;
    return spec;
  }
  std::string Submit(const jobs::JobSpec& spec, const std::string& request_id = "") {
    const auto submitted = manager_->Submit(request_id, spec);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return submitted.ok() ? submitted->job->id : "";
  }
  JobPtr Get(const std::string& id) {
    const auto job = manager_->Get(id);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : std::make_shared<Job>();
  }
  jobs::JobState StateOf(const std::string& id) { return Get(id)->state; }
  std::string ReasonOf(const std::string& id) { return Get(id)->changes.back().reason; }
  void Pass(absl::Duration time) {
    host_.now += time;
    for (const auto& [id, trainer] : trainers_) manager_->runs().OnTrainerHeartbeat(id);
    manager_->Tick();
  }
  // All workers of the epoch report that they have started.
  void AllStart(int64_t step = 0) {
    const int64_t epoch = trainers_.at(1)->epoch();
    for (const auto& [id, trainer] : trainers_) manager_->runs().OnTraining(id, epoch, TrainingStarted{.step = step});
  }
  void Step(int64_t step, WorkerId rank0 = 1) {
    jobs::TrainProgress progress;
    progress.step = step;
    progress.loss = 3;
    progress.tokens = step * 32;
    progress.seconds.total = 0.5;
    manager_->runs().OnTraining(rank0, trainers_.at(rank0)->epoch(), progress);
  }
  void AllEnd(jobs::TrainOutcome outcome, const absl::Status& status = absl::OkStatus()) {
    const int64_t epoch = trainers_.at(1)->epoch();
    for (const auto& [id, trainer] : trainers_) manager_->runs().OnTraining(id, epoch, jobs::TrainEnd{outcome, status});
  }
  void ConnectBoth() {
    Connect(1);
    Connect(2);
  }
  // Submits a job, connects two workers, and lets the job begin.
  std::string Begun(const jobs::JobSpec& spec = Spec(), const std::string& request_id = "") {
    ConnectBoth();
    const std::string id = Submit(spec, request_id);
    manager_->Tick();
    EXPECT_EQ(StateOf(id), jobs::JobState::kPreparing);
    return id;
  }
  // The same, until the job runs.
  std::string Running(const jobs::JobSpec& spec = Spec()) {
    const std::string id = Begun(spec);
    AllStart();
    EXPECT_EQ(StateOf(id), jobs::JobState::kRunning);
    return id;
  }
  // Returns a spec with text, which must be packed first.
  static jobs::JobSpec TextSpec() {
    jobs::JobSpec spec = Spec();
    spec.datasets = {"a.jsonl"};
    return spec;
  }

  JobManager::Options options_;
  MemoryJournal journal_;
  FakeHost host_;
  RecordingSink sink_;
  std::map<WorkerId, std::shared_ptr<FakeTrainer>> trainers_;
  std::unique_ptr<JobManager> manager_;
};

}  // namespace switchyard::server
