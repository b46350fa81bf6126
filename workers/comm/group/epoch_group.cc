#include "workers/comm/group/epoch_group.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {

absl::Status EpochGroup::Await(int64_t epoch, RendezvousStore* store, absl::FunctionRef<absl::Status()> wait) {
  {
    absl::MutexLock lock(&mu_);
    if (epoch <= aborted_epoch_) return absl::AbortedError(absl::StrCat("epoch ", epoch, " was over before it began"));
    forming_ = store;
    epoch_ = epoch;
  }
  // (Also after an exception, as the store is the caller's.)
  const absl::Cleanup waited = [this] {
    absl::MutexLock lock(&mu_);
    forming_ = nullptr;
  };
  return wait();
}

absl::StatusOr<Communicator*> EpochGroup::Form(int64_t epoch, RendezvousStore* store, FormFn form) {
  std::unique_ptr<Communicator> comm;
  RETURN_IF_ERROR(Await(epoch, store, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(comm, form());
    return absl::OkStatus();
  }));
  absl::MutexLock lock(&mu_);
  if (epoch <= aborted_epoch_) return absl::AbortedError(absl::StrCat("epoch ", epoch, " was aborted while it formed"));
  comm_ = std::move(comm);
  return comm_.get();
}

bool EpochGroup::stands() const {
  absl::MutexLock lock(&mu_);
  return comm_ != nullptr;
}

void EpochGroup::Leave() {
  std::unique_ptr<Communicator> gone;
  absl::MutexLock lock(&mu_);
  gone = std::move(comm_);
  if (gone != nullptr) gone->Abort("this rank leaves the group");
}

void EpochGroup::Abort(int64_t epoch, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = std::max(aborted_epoch_, epoch);
  if (epoch_ > epoch) return;
  if (forming_ != nullptr) forming_->CancelWaits(reason);
  if (comm_ != nullptr) comm_->Abort(reason);
}

void EpochGroup::ForgetEpochs() {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = 0;
}

}  // namespace switchyard::comm
