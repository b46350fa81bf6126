// The jobs' thread: owns the job manager, and runs the tasks that users, workers and packing threads post.
//
// Thread-safe.  No method but Stop waits for the thread, which itself waits only for the disk of journal and sink.  If
// a disk holds it up, reports on progress (steps, notes, heartbeats, bytes packed) beyond kMostWaiting replace the last
// one of their worker; other tasks queue up.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/jobs/job_manager.h"
#include "server/jobs/pack_runner.h"

namespace switchyard::server {

class JobLoop final : public TrainerEvents, private TrainingHost {
 public:
  using Task = absl::AnyInvocable<void(JobManager&)>;
  static constexpr size_t kMostWaiting = 4096;
  // Called on the loop's thread, except for `end_of`.  None may block, but `checkpoints_of` reads a folder.
  struct Hooks {
    std::function<void(const std::string&token)> open_store, close_store;
    std::function<void(int local_index, int64_t pid)> kill_worker;
    std::function<std::string(int local_index, int64_t pid)> end_of;
    std::function<void(const TrainingCounts&)> on_counts;      // every second or so
    std::function<absl::Duration(bool wanted)> share_serving;  // TrainingHost::ShareServing
    std::function<bool(const fleet::WorkerInfo&)> has_unread;  // TrainingHost::HasUnread; may be empty
    std::function<std::vector<int64_t>(const std::string& job_id)> checkpoints_of;  // TrainingHost::CheckpointsOf
  };

  // Borrows runner and sink; sink may be null.
  JobLoop(JobManager::Options options, std::unique_ptr<JobJournal> journal, PackRunner* runner, ProgressSink* sink,
          Hooks hooks);
  ~JobLoop() override;

  // Reads the journal, then starts the thread, which continues the journal's jobs.
  absl::Status Start();
  // Returns false if the loop has stopped; the task is then dropped.
  [[nodiscard]] bool Post(Task task);
  // Has running jobs save and stop; calls `done` when they have, at most once.
  void Drain(std::function<void()> done);
  size_t num_waiting() const;
  // Runs the posted tasks, ends workers' links and watches, and blocks until the thread is gone.
  void Stop();

  void OnTrainer(WorkerId id, std::shared_ptr<TrainerClient> client, fleet::WorkerInfo info) override;
  void OnTrainerHeartbeat(WorkerId id) override;
  void OnTraining(WorkerId id, int64_t epoch, TrainingReport report) override;
  void OnTrainerLost(WorkerId id, std::string reason) override;

 private:
  absl::Time Now() override;
  int64_t UnixMs() override;
  std::string DrawHex() override;
  void OpenStore(const std::string& token) override { hooks_.open_store(token); }
  void CloseStore(const std::string& token) override { hooks_.close_store(token); }
  void Prepare(const std::string& job_id, PackRequest request) override;
  void CancelPrepare(const std::string& job_id) override { runner_->Cancel(job_id); }
  void KillWorker(int local_index, int64_t pid) override { hooks_.kill_worker(local_index, pid); }
  std::string EndOf(int local_index, int64_t pid) override { return hooks_.end_of(local_index, pid); }
  absl::Duration ShareServing(bool wanted) override { return hooks_.share_serving(wanted); }
  std::vector<int64_t> CheckpointsOf(const std::string& job_id) override { return hooks_.checkpoints_of(job_id); }
  bool HasUnread(const fleet::WorkerInfo& info) override { return hooks_.has_unread && hooks_.has_unread(info); }

  void Run();
  // Posts a worker's report; drops it once the loop has stopped.
  void Report(Task task);
  // Posts a report that the next one of the same kind and origin makes stale.
  enum class Progress { kHeartbeat, kStep, kNote, kPacked };
  void ReportProgress(Progress kind, const std::string& from, Task task);

  const std::unique_ptr<JobJournal> journal_;
  PackRunner* const runner_;
  const Hooks hooks_;
  JobManager manager_;
  std::function<void()> drained_;  // used on the loop's thread
  mutable absl::Mutex mu_;
  std::vector<Task> inbox_ ABSL_GUARDED_BY(mu_);
  // Reports that came while the inbox was full; they run after it.
  std::map<std::pair<Progress, std::string>, Task> newest_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::server
