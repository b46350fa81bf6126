// The communicator of one epoch at a time.  Any thread may end it, also while it forms.
//
// Thread-safe; Form and Leave belong to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

class EpochGroup {
 public:
  using FormFn = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Communicator>>()>;

  // Blocks until `form`, which waits for the store alone, has formed the group.  Owns the communicator until Leave.
  // Errors: form's; Aborted for an epoch that was aborted before or meanwhile.
  absl::StatusOr<Communicator*> Form(int64_t epoch, RendezvousStore* store, FormFn form);
  // Blocks in `wait`, which waits for the store alone, before the epoch's Form.  Errors: wait's; Aborted, as Form's.
  absl::Status Await(int64_t epoch, RendezvousStore* store, absl::FunctionRef<absl::Status()> wait);
  // Whether a group has formed and has not been left.
  bool stands() const;
  void Leave();
  // Ends that epoch and earlier ones, now or when they form.
  void Abort(int64_t epoch, const std::string& reason);
  // Forgets all epochs so far: a new link may be to a server that counts anew.
  void ForgetEpochs();

 private:
  mutable absl::Mutex mu_;
  std::unique_ptr<Communicator> comm_ ABSL_GUARDED_BY(mu_);
  RendezvousStore* forming_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;          // that forms or has formed
  int64_t aborted_epoch_ ABSL_GUARDED_BY(mu_) = 0;  // epochs up to here are over
};

}  // namespace switchyard::comm
