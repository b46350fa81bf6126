// One attempt of a job: its ranks from StartTraining until all of them have ended.
//
//   forming ──all started──► running ──┬─ the ranks end by themselves, or as they were asked to
//      └───────── Abort ───────────────┴─► ended or lost, every one
//
// The first fault (a rank's link, a rank that reports LOST or FAILED, a time limit) aborts the others; a rank that does
// not end then loses its link.  FAILED of any rank is the verdict, then BLOCKED of any, whenever it comes: a peer may
// have taken it for a loss.  Else it is rank 0's where that has done what was wanted, else the first fault.
// Thread-compatible; reads no clock.
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
    absl::Duration form = absl::Minutes(10);   // until all ranks have started: their models are loaded
    absl::Duration stall = absl::Minutes(30);  // between two words of rank 0, and for a stop with a checkpoint
    absl::Duration stop_now = absl::Seconds(30);
    absl::Duration cancel_save = absl::Minutes(5);  // for a checkpoint of a job that is cancelled; then stop_now
    absl::Duration last_ranks = absl::Minutes(1);   // between the first rank's end and the last's
    absl::Duration abort = absl::Seconds(30);       // until a rank that was told has ended
  };

  // members[r] has rank r.
  Attempt(int64_t epoch, std::vector<TrainingWorker> members, const Limits& limits, absl::Time now);

  // Sends each rank its assignment: `assignment` with epoch, rank, world and reach filled in.
  void Start(jobs::TrainingAssignment assignment);
  // Each is nothing for a worker that is no member, or has ended.
  void OnStarted(WorkerId id, int64_t step, absl::Time now);
  // Rank 0 has done something, so all have started; or it has sent a note, and they need not have.  False: not rank 0,
  // or the attempt is being aborted.
  bool OnWord(WorkerId id, bool is_note, absl::Time now);
  void OnEnded(WorkerId id, jobs::TrainEnd end, absl::Time now);
  void OnLost(WorkerId id, const std::string& reason, absl::Time now);

  // Again only for a stop without a checkpoint after one with.
  void Stop(jobs::StopKind kind, absl::Time now);
  // With a checkpoint if that takes no longer than cancel_save, else without; a slice is not waited for longer.
  void Cancel(absl::Time now);
  // The first reason counts.
  void Abort(absl::Status reason, absl::Time now);
  // The ranks had to wait so long: what they are awaited for may come later, but for their end at once or a cancel.
  void Postpone(absl::Duration by);
  // Those that did not end when they were told are given up: they are returned, nobody can use them any more.
  std::vector<TrainingWorker> CheckTime(absl::Time now);

  int64_t epoch() const { return epoch_; }
  bool all_started() const { return all_started_; }
  int64_t first_step() const { return first_step_; }  // of rank 0; what it went on from
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
  absl::Status failure_;  // of the first rank that says FAILED; OK: none does
  absl::Status block_;    // likewise BLOCKED
  absl::Time deadline_;
  std::string awaited_;  // by deadline_: "all ranks to start"
};

}  // namespace switchyard::server
