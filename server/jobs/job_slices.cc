// The job that trains on workers which also serve, in the slices of time that serving leaves to it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "server/jobs/job_manager.h"

namespace switchyard {
namespace {

constexpr char kWaitsForServing[] = "waits for serving";
constexpr absl::Duration kStarves = absl::Seconds(2);

}  // namespace

// What it could not use of the time since the last tick is no fault of its ranks.
void JobManager::WatchSlices() {
  Run* shares = nullptr;
  for (auto& [sequence, run] : runs_) {
    if (run.attempt != nullptr && run.job->spec.on_serving_workers) shares = &run;
  }
  const absl::Time now = host_->Now(), before = std::exchange(watched_at_, now);
  const absl::Duration given = host_->ShareServing(shares != nullptr);
  const absl::Duration got = given - std::exchange(slices_given_, given);
  if (shares == nullptr || before == absl::InfinitePast() || got > absl::ZeroDuration()) last_slice_at_ = now;
  if (shares == nullptr || before == absl::InfinitePast()) return;
  if (const absl::Duration missed = now - before - got; missed > absl::ZeroDuration()) {
    shares->attempt->Postpone(missed);
    if (shares->running_since < now) shares->running_since = std::min(shares->running_since + missed, now);
  }
  if (now - last_slice_at_ > kStarves) {
    Note(shares->job, kWaitsForServing);
  } else if (shares->job->note == kWaitsForServing) {
    Note(shares->job, "");
  }
}

// The attempt's end, whose ranks have not all ended.
void JobManager::GiveUp(Run* run, const std::vector<TrainingWorker>& members) {
  for (const TrainingWorker& trainer : members) {
    if (!trainer.info.also_trains) {
      Fence(trainer, "did not end when it was told");
      continue;
    }
    LogWarn("training on worker ", trainer.id, " (pid ", trainer.info.pid,
            ") did not end when it was told; no job begins there until it does");
    serving_.Strand(trainer.id);
  }
  // Who was fenced is lost, and has ended the run.
  if (members[0].info.also_trains) ConcludeIfOver(run);
}

}  // namespace switchyard
