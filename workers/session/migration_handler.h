// Carries out the server's migrations of experts in one session of a worker, and answers.
//
// Used by the thread that runs the worker.  A message of another group is of one that is over and gets no answer.
#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/serving/placement_host.h"

namespace switchyard::worker {

class MigrationHandler {
 public:
  using SendFn = absl::AnyInvocable<void(v1::LinkRequest)>;

  // host: borrowed.
  MigrationHandler(PlacementHost* host, SendFn send) : host_(host), send_(std::move(send)) {}

  // The worker is in this group now; 0 = in none.  What was prepared went with the group before.
  void Enter(int64_t group_epoch);
  void Prepare(const v1::PreparePlacement& message);
  void Drop(const v1::DropPlacement& message);
  // An error ends the epoch for this rank, as slots that the server counts as free are not.
  absl::Status Release(const v1::ReleasePlacement& message);

  // Answers once the copies have arrived, or have failed.
  void Poll();
  // Whether copies are under way, so that Poll has to be called.
  bool waiting() const { return preparing_ != 0; }

 private:
  void Answer(int64_t placement_epoch, const absl::Status& status);

  PlacementHost* const host_;
  SendFn send_;
  int64_t group_epoch_ = 0;
  int64_t preparing_ = 0;  // the migration whose copies are under way; 0 = none
};

}  // namespace switchyard::worker
