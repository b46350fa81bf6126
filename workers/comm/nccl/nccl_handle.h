// NcclHandle: one NCCL communicator on one device, and the lock over all of its calls.
//
// NCCL allows one thread at a time in a communicator, also for looking at its state and for aborting it.  The
// communicator is non-blocking, so no call waits for a peer, the lock is never held for long, and a launcher or starter
// that waits can be freed by another thread's Abort.  Only the end blocks, without the lock: NCCL waits for the graphs
// that its collectives were recorded in, until they are destroyed.
//
// Thread-safe.  NCCL >= 2.18 (non-blocking communicators of ncclCommInitRankConfig, with group calls).
// Errors: Unavailable (NCCL's asynchronous ones; the handle was let go), Internal (its refusal of a call).
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::comm {

// Makes a device the calling thread's current one for a scope.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

class NcclHandle {
 public:
  // What all ranks need and one makes; text.
  static absl::StatusOr<std::string> NewId();
  // Begins to connect; Settled() says when that is over.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Begin(int device, int rank, int world, const std::string& id);
  // Aborts, unless closed.
  ~NcclHandle();

  // True: nothing is in progress, the last launch is on its stream.
  absl::StatusOr<bool> Finalized();
  // Blocks until settled, at most until the deadline (DeadlineExceeded says `what`).
  absl::Status AwaitFinalized(const std::string& what, absl::Time deadline);
  // Launches what `ops` calls for as one group, on the streams that it names.  Settled() says when it is there.
  absl::Status Launch(absl::FunctionRef<ncclResult_t(ncclComm_t)> ops);
  // Frees the device from what is launched, and everything else: at once every other call here says so, and this one
  // returns when no graph holds a collective of ours any more.  Again: nothing.
  void Abort();
  // Ends in order.  REQUIRES: nothing is under way here.  DeadlineExceeded: it is still there, to be aborted (something
  // runs, or a graph holds it).
  absl::Status Close(absl::Time deadline);

 private:
  explicit NcclHandle(int device) : device_(device) {}
  // Ours no more; null: it was not any more.
  ncclComm_t ReleaseIt();
  absl::Status Explain(const char* what, ncclResult_t result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  absl::Mutex mu_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: let go
};

}  // namespace switchyard::comm
