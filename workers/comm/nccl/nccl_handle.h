// NcclHandle: one NCCL communicator on one device, and the lock over all of its calls.
//
// NCCL allows one thread at a time in a communicator, also to read its state and to abort it.  The communicator is
// non-blocking, so no call waits for a peer, the lock is never held for long, and another thread's Abort can free a
// thread that waits here.  Only the end blocks, without the lock: NCCL waits until the graphs with its collectives are
// destroyed.
//
// Thread-safe.  NCCL >= 2.18 (non-blocking communicators of ncclCommInitRankConfig, with group calls).
// Errors: Unavailable (NCCL's asynchronous ones; the handle was aborted or closed), Internal (NCCL refuses a call).
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
  // The id of a new communicator, as text: one rank makes it, all need it.
  static absl::StatusOr<std::string> NewId();
  // Begins to connect; Finalized() says when that is over.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Begin(int device, int rank, int world, const std::string& id);
  // Aborts, unless closed.
  ~NcclHandle();

  // True: nothing is in progress, the last launch is on its stream.
  absl::StatusOr<bool> Finalized();
  // Blocks until Finalized(), at most until the deadline (DeadlineExceeded says `what`).
  absl::Status AwaitFinalized(const std::string& what, absl::Time deadline);
  // Launches the operations of `ops` as one group, on the streams that it names.  Finalized() says when they are there.
  absl::Status Launch(absl::FunctionRef<ncclResult_t(ncclComm_t)> ops);
  // Frees the device and the communicator.  Every other call here fails from now on; this one returns when no graph
  // holds one of the communicator's collectives any more.  Idempotent.
  void Abort();
  // Ends in order.  REQUIRES: nothing is under way here.  DeadlineExceeded: a collective runs, or a graph holds one;
  // the communicator is still there, to be aborted.
  absl::Status Close(absl::Time deadline);

 private:
  explicit NcclHandle(int device) : device_(device) {}
  // Gives up ownership and returns the communicator; null: it was given up before.
  ncclComm_t ReleaseIt();
  absl::Status Explain(const char* what, ncclResult_t result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  absl::Mutex mu_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: aborted or closed
};

}  // namespace switchyard::comm
