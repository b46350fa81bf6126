#include "server/jobs/job_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kLoadStats = absl::Milliseconds(500);

}  // namespace

JobLoop::JobLoop(JobManager::Options options, std::unique_ptr<JobJournal> journal, PackRunner* runner,
                 ProgressSink* sink, Hooks hooks)
    : journal_(std::move(journal)),
      runner_(runner),
      hooks_(std::move(hooks)),
      manager_(std::move(options), journal_.get(), this, sink) {}

JobLoop::~JobLoop() { Stop(); }

absl::Status JobLoop::Start() {
  RETURN_IF_ERROR(manager_.Start());
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

bool JobLoop::Post(Task task) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return false;
  inbox_.push_back(std::move(task));
  return true;
}

void JobLoop::Run() {
  std::vector<Task> tasks;
  absl::Time next_tick = MonotonicNow(), next_counts = next_tick;
  for (bool stopping = false; !stopping;) {
    {
      absl::MutexLock lock(&mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !inbox_.empty(); };
      mu_.AwaitWithTimeout(absl::Condition(&wanted), next_tick - MonotonicNow());
      stopping = stopping_;
      stopped_ = stopping;
      tasks.swap(inbox_);
      for (auto& [whose, task] : newest_) tasks.push_back(std::move(task));
      newest_.clear();
    }
    for (Task& task : tasks) task(manager_);
    tasks.clear();
    manager_.Tick();
    if (drained_ && manager_.idle()) std::exchange(drained_, nullptr)();
    const absl::Time now = MonotonicNow();
    next_tick = now + kTick;
    if (now < next_counts) continue;
    next_counts = now + kLoadStats;
    hooks_.on_counts(manager_.counts());
  }
  manager_.End();
}

void JobLoop::Drain(std::function<void()> done) {
  Report([this, done = std::move(done)](JobManager& manager) mutable {
    manager.Drain();
    drained_ = std::move(done);
  });
}

void JobLoop::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stopped_ = stopped_ || !thread_.joinable();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Time JobLoop::Now() { return MonotonicNow(); }

int64_t JobLoop::UnixMs() { return absl::ToUnixMillis(absl::Now()); }

std::string JobLoop::DrawHex() { return DrawToken(); }

void JobLoop::Prepare(const std::string& job_id, PackRequest request) {
  runner_->Start(
      job_id, std::move(request),
      [this, job_id](int64_t done, int64_t total) {
        ReportProgress(Progress::kPacked, job_id, [job_id, done, total](JobManager& manager) {
          manager.runs().OnPrepareProgress(job_id, done, total);
        });
      },
      [this, job_id](absl::StatusOr<PackedData> packed) {
        Report([job_id, packed = std::move(packed)](JobManager& manager) mutable {
          manager.runs().OnPrepared(job_id, std::move(packed));
        });
      });
}

void JobLoop::Report(Task task) {
  if (!Post(std::move(task))) return;
}

void JobLoop::ReportProgress(Progress kind, const std::string& from, Task task) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return;
  if (inbox_.size() < kMostWaiting) {
    inbox_.push_back(std::move(task));
  } else {
    newest_[{kind, from}] = std::move(task);
  }
}

size_t JobLoop::num_waiting() const {
  absl::MutexLock lock(&mu_);
  return inbox_.size() + newest_.size();
}

void JobLoop::OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) {
  Report([id, client = std::move(client), info = std::move(info)](JobManager& manager) mutable {
    manager.runs().OnTrainer(id, std::move(client), std::move(info));
  });
}

void JobLoop::OnTrainerHeartbeat(WorkerId id) {
  ReportProgress(Progress::kHeartbeat, absl::StrCat(id),
                 [id](JobManager& manager) { manager.runs().OnTrainerHeartbeat(id); });
}

void JobLoop::OnTraining(WorkerId id, int64_t epoch, TrainingReport report) {
  const bool is_step = std::holds_alternative<jobs::TrainProgress>(report);
  const bool is_note = std::holds_alternative<std::string>(report);
  Task task = [id, epoch, report = std::move(report)](JobManager& manager) mutable {
    manager.runs().OnTraining(id, epoch, std::move(report));
  };
  if (!is_step && !is_note) return Report(std::move(task));
  ReportProgress(is_step ? Progress::kStep : Progress::kNote, absl::StrCat(id), std::move(task));
}

void JobLoop::OnTrainerLost(WorkerId id, std::string reason) {
  Report([id, reason = std::move(reason)](JobManager& manager) mutable {
    manager.runs().OnTrainerLost(id, std::move(reason));
  });
}

}  // namespace switchyard::server
