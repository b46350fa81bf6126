// What one session of a worker does with the server's migrations of expert placement, and what it answers.
//
// Of the thread that runs the worker.  Messages of another group are of one that is over: no answer.
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
  // An error ends the epoch for this rank: what the server counts as free is not.
  absl::Status Release(const v1::ReleasePlacement& message);

  // Answers once what is being prepared is there, or cannot be.
  void Poll();
  // Whether Poll has something to look for.
  bool waiting() const { return preparing_ != 0; }

 private:
  void Answer(int64_t placement_epoch, const absl::Status& status);

  PlacementHost* const host_;
  SendFn send_;
  int64_t group_epoch_ = 0;
  int64_t preparing_ = 0;  // the migration whose copies are under way; 0 = none
};

}  // namespace switchyard::worker
