#include "server/jobs/job_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace switchyard::server {

std::vector<Job*> JobQueue::Waiting() const {
  std::vector<Job*> waiting;
  for (const auto& [sequence, job] : book_->jobs()) {
    if (job->state == jobs::JobState::kPending) waiting.push_back(job.get());
  }
  std::sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) { return a->queued < b->queued; });
  return waiting;
}

void JobQueue::Admit() {
  if (runs_->draining()) return;
  const std::vector<Job*> waiting = Waiting();
  if (!book_->clean()) {
    for (Job* job : waiting) book_->NoteUnwritten(job);
    return;
  }
  Room alone = {pools_.alone.NumIdle() - runs_->NumAwaited(/*on_serving_workers=*/false)};
  Room serving = {pools_.serving.NumIdle() - runs_->NumAwaited(/*on_serving_workers=*/true)};
  for (Job* job : waiting) {
    if (!Consider(job, job->spec.on_serving_workers ? &serving : &alone)) return;
  }
}

bool JobQueue::Consider(Job* job, Room* room) {
  if (room->held) return true;
  const int wanted = job->spec.workers;
  const TrainerPool& pool = pools_.Of(job->spec);
  if (wanted > pool.configured()) {  // of an earlier server, which had more
    book_->Note(job, absl::StrCat("needs ", wanted, " workers, this server has ", pool.configured(),
                                  job->spec.on_serving_workers ? " that serve and train" : ""));
    return true;
  }
  if (wanted > room->available) {
    book_->Note(job, absl::StrCat("waits for workers: ", std::max(room->available, 0), " of ", wanted, " are free"));
    room->held = true;
    return true;
  }
  room->available -= pool.Cost(wanted);
  if (retries_->Pauses(*job)) {
    book_->Note(job, "pauses after a loss");
    return true;
  }
  retries_->EndPause(*job);
  if (!book_->Move(job, jobs::JobEvent::kAdmit, "it is its turn", host_->UnixMs()).ok()) {
    book_->NoteUnwritten(job);
    return false;
  }
  runs_->Begin(job);
  return true;
}

}  // namespace switchyard::server
