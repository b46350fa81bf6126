#include "tests/simulation/training/job_server.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::simulation {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

}  // namespace

server::TrainerEvents* JobServer::OpenJobs() {
  if (disk_ == nullptr) return nullptr;
  absl::StatusOr<std::unique_ptr<server::JobStore>> journal = server::JobStore::Open("/simulated/jobs.sqlite");
  absl::Status status = journal.status();
  if (status.ok()) {
    journal_ = *std::move(journal);
    TrainingHost* const host = this;
    manager_ = std::make_unique<server::JobManager>(options_, journal_.get(), host, nullptr);
    status = manager_->Start();
  }
  if (status.ok()) {
    After(kTick, [this] { Tick(); });
    return this;
  }
  world_.Note("server: no jobs: ", status.message());
  world_.Require(disk_->state() != MemoryDisk::State::kGood,
                 "the journal does not open on a good disk: ", status.ToString());
  world_.Require(!absl::IsDataLoss(status), "the journal is damaged: ", status.ToString());
  manager_ = nullptr;
  journal_ = nullptr;
  return nullptr;
}

void JobServer::DropJobs() {
  tasks_.clear();
  packing_.clear();
  running_ = false;
  manager_ = nullptr;
  if (disk_ != nullptr) disk_->EndProcess();
  journal_ = nullptr;
  if (disk_ != nullptr && std::exchange(loses_power_, false)) disk_->LosePower();
}

void JobServer::PostJob(Task task) {
  if (manager_ == nullptr) return;
  tasks_.push_back(std::move(task));
  if (std::exchange(running_, true)) return;
  Soon([this] { RunJobs(); });
}

void JobServer::RunJobs() {
  running_ = false;
  for (Task& task : std::exchange(tasks_, {})) task(*manager_);
  manager_->Tick();
}

void JobServer::Tick() {
  manager_->Tick();
  After(kTick, [this] { Tick(); });
}

std::string JobServer::DrawHex() {
  return absl::StrCat(absl::Hex(world_.random().Next(), absl::kZeroPad16),
                      absl::Hex(world_.random().Next(), absl::kZeroPad16));
}

void JobServer::Prepare(const std::string& job_id, server::PackRequest) {
  world_.Require(!packing_.contains(job_id), "two packings of one job at a time");
  packing_[job_id] = true;
  After(world_.random().Skewed(absl::Milliseconds(5), absl::Seconds(1)), [this, job_id] {
    absl::StatusOr<server::PackedData> packed =
        server::PackedData{.documents = 10, .tokens = 10000, .trained_tokens = 10000, .bytes = 1000};
    if (disk_->state() != MemoryDisk::State::kGood) packed = absl::ResourceExhaustedError("no space left on device");
    if (!packing_[job_id]) packed = absl::CancelledError("cancelled");
    packing_.erase(job_id);
    PostJob([job_id, packed](server::JobManager& manager) { manager.runs().OnPrepared(job_id, packed); });
  });
}

void JobServer::CancelPrepare(const std::string& job_id) {
  if (const auto it = packing_.find(job_id); it != packing_.end()) it->second = false;
}

}  // namespace switchyard::simulation
