#include "workers/train/job_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/training/reduce_policy.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/comm/socket_communicator.h"

namespace switchyard {

absl::StatusOr<Communicator*> JobGroup::Form(const GroupOptions& options, CommMode mode, RendezvousStore* store) {
  {
    absl::MutexLock lock(&mu_);
    if (options.epoch <= aborted_epoch_)
      return absl::AbortedError(absl::StrCat("epoch ", options.epoch, " was over before it began"));
    forming_ = store;
    epoch_ = options.epoch;
  }
  absl::StatusOr<std::unique_ptr<Communicator>> comm =
      OvertakesOnTheSocket(mode) ? FormSocketGroup({.group = options, .traffic = traffic_}, store)
                                 : FormGlooGroup(options, store);
  absl::MutexLock lock(&mu_);
  forming_ = nullptr;
  RETURN_IF_ERROR(comm.status());
  if (options.epoch <= aborted_epoch_)
    return absl::AbortedError(absl::StrCat("epoch ", options.epoch, " was aborted while it formed"));
  comm_ = *std::move(comm);
  return comm_.get();
}

void JobGroup::Leave() {
  std::unique_ptr<Communicator> gone;
  absl::MutexLock lock(&mu_);
  gone = std::move(comm_);
  if (gone != nullptr) gone->Abort("this rank leaves the group");
}

void JobGroup::Abort(int64_t epoch, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = std::max(aborted_epoch_, epoch);
  if (epoch_ > epoch) return;
  if (forming_ != nullptr) forming_->CancelWaits(reason);
  if (comm_ != nullptr) comm_->Abort(reason);
}

void JobGroup::ForgetEpochs() {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = 0;
}

}  // namespace switchyard
