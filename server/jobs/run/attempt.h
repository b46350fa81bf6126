// State machine of one attempt of a job: its ranks, from StartTraining until all of them have ended.
//
//   forming ──all started──► running ──┬─ the ranks end by themselves, or as they were asked to
//      └───────── Abort ───────────────┴─► ended or lost, every one
//
// The first fault (a broken link, a rank that reports LOST or FAILED, a time limit) aborts the other ranks; a rank that
// does not end then loses its link.  The verdict is FAILED if any rank reports it, else BLOCKED if any does, even late,
// since its peers may have reported a loss first.  Otherwise it is rank 0's end if rank 0 finished or stopped as asked,
// else the first fault. Thread-compatible; reads no clock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/trainer_pool.h"

namespace switchyard::server {

class Attempt {
 public:
  struct Limits {
    absl::Duration form = absl::Minutes(10);  // until all ranks have started, with their models loaded
    // Between two reports of rank 0, and for a stop with a checkpoint.  Longer than ranks wait for each other
    // (TrainJobInput's step_limit and disk_limit), so that they say first what they waited for; behind a gate they wait
    // for days.
    absl::Duration stall = absl::Minutes(70);
    absl::Duration stop_now = absl::Seconds(30);
    absl::Duration cancel_save = absl::Minutes(5);  // for the checkpoint of a cancelled job; then stop_now
    absl::Duration last_ranks = absl::Minutes(1);   // between the first rank's end and the last's
    absl::Duration abort = absl::Seconds(30);       // until an aborted rank has ended
  };

  // members[r] is rank r.
  Attempt(int64_t epoch, std::vector<TrainingWorker> members, const Limits& limits, absl::Time now);

  // Sends each rank `assignment` with its epoch, rank, world and reach filled in.
  void Start(jobs::TrainingAssignment assignment);
  // Events of workers; ignored for a worker that is no member or has ended.
  void OnStarted(WorkerId id, int64_t step, absl::Time now);
  // A worker has reported progress, or a note.  Progress of rank 0 means that all ranks have started; a note does not.
  // Returns false if the worker is not rank 0 or the attempt is being aborted.  While the ranks stop with a checkpoint,
  // a note ("saves step 8: 40 of 200 MiB") extends the deadline, unless the job is cancelled.
  bool OnWord(WorkerId id, bool is_note, absl::Time now);
  void OnEnded(WorkerId id, jobs::TrainEnd end, absl::Time now);
  void OnLost(WorkerId id, const std::string& reason, absl::Time now);

  // Asks the ranks to stop.  A second call only counts if it is without a checkpoint and the first was with one.
  void Stop(jobs::StopKind kind, absl::Time now);
  // Stops with a checkpoint if that takes no longer than cancel_save, else without; Postpone does not extend this.
  void Cancel(absl::Time now);
  // Aborts all ranks.  Only the first reason counts.
  void Abort(absl::Status reason, absl::Time now);
  // Extends the deadline by a time in which the ranks could not run, except that of an immediate stop or a cancel.
  void Postpone(absl::Duration by);
  // Checks the deadline.  Gives up ranks that did not end when they were asked to, and returns them; they are of no use
  // any more.
  std::vector<TrainingWorker> CheckTime(absl::Time now);

  int64_t epoch() const { return epoch_; }
  bool all_started() const { return all_started_; }
  int64_t first_step() const { return first_step_; }  // from which rank 0 went on
  bool stopping() const { return stopping_; }
  bool over() const;
  // REQUIRES: over().
  jobs::TrainEnd Verdict() const;
  std::vector<WorkerId> member_ids() const;

 private:
  struct Member {
    TrainingWorker trainer;
    bool started = false;
    bool over = false;  // has ended, or is lost
    jobs::TrainEnd end = {};
  };
  Member* Find(WorkerId id);
  std::string NameOf(const Member& member) const;  // "rank 1 (pid 7 on host)"
  void Await(std::string what, absl::Duration limit, absl::Time now);

  const int64_t epoch_;
  const Limits limits_;
  std::vector<Member> members_;
  bool all_started_ = false;
  int64_t first_step_ = 0;
  bool stopping_ = false;
  jobs::StopKind stop_ = jobs::StopKind::kSave;
  bool cancelled_ = false;
  bool aborted_ = false;
  absl::Status fault_;    // the first
  absl::Status failure_;  // of the first rank that reported FAILED; OK: none did
  absl::Status block_;    // likewise BLOCKED
  absl::Time deadline_;
  absl::Duration limit_;  // of which deadline_ is the end
  std::string awaited_;   // what deadline_ is for: "all ranks to start"
};

}  // namespace switchyard::server
