// NcclHandle: a rank's NCCL communicator on one device, from its forming to its end.
//
// Whether NCCL's calls block is fixed when a communicator is made.  Ours is made in two steps:
//  1. A non-blocking communicator connects the ranks.  Its calls only begin something, the handle looks until it is
//     done, and NCCL's guide ("Fault Tolerance") allows its abort at any point.
//  2. That one is split into a blocking communicator of the same ranks, which collectives are launched with, and goes
//     (DropScaffold).  Launches of a non-blocking one cost a thread each: NCCL 2.27 and 2.28 start one in every
//     ncclGroupEnd (ncclGroupEndInternal in NCCL's src/group.cc).
//
// NCCL allows one thread at a time in a communicator (its guide, "Thread Safety").  The handle keeps to that, with one
// exception: a launch may block, for a peer that has still to connect or for a device that does not get on, and only
// ncclCommAbort frees it, from another thread.  For that NCCL sets a flag that all of its waits look at; its
// maintainers support it since 2.19.1 (NVIDIA/nccl issue 992), and PyTorch's watchdog relies on it.  The exception is
// kept small: a launch gets two seconds to return by itself, no lock is held during one, and nothing else is called
// meanwhile (an asynchronous error is looked for between launches).  So a blocked launch ends two seconds after the
// error that ends it.  One thing remains: a launch that takes some 10 us, and whose thread the machine does not run for
// two seconds, continues in a communicator that is gone, which may crash the process.  NCCL has no call that rules that
// out.  Finalizing and destroying are not allowed beside a blocked call and have no deadline, so the end is an abort,
// too: see NcclGroup::End for what it waits for before.
//
// An abort waits for the graphs that collectives were recorded in, until they are destroyed; it holds no lock.
//
// Thread-safe; one launch at a time.  NCCL >= 2.19, without the environment's NCCL_COMM_BLOCKING, which overrides both
// steps.
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

// Whether an error of a handle's may come from a peer that has ended or cannot be reached.  NCCL does not say which.
bool MayBePeersEnd(const absl::Status& error);

class NcclHandle {
 public:
  // The id of a new communicator, as text of kIdBytes: one rank makes it, all need it.
  static constexpr int64_t kIdBytes = 2 * sizeof(ncclUniqueId);
  static absl::StatusOr<std::string> NewId();
  // Begins to connect; Connect() says when that is over.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Begin(int device, int rank, int world, const std::string& id);
  // Aborts.
  ~NcclHandle();

  // Blocks until every rank is here and launches are possible, at most until the deadline (DeadlineExceeded says
  // `what`).  An Abort ends it.
  absl::Status Connect(const std::string& what, absl::Time deadline);
  // Lets go of what only Connect needed.  REQUIRES: every rank's Connect is over, as a collective shows.
  void DropScaffold();
  // NCCL's asynchronous error, if there is one.  True: nothing is in progress but launches.
  absl::StatusOr<bool> Idle();
  // Launches what `ops` calls for as one group, on the streams that it names; it is there when this returns.  Blocks as
  // long as NCCL does, at most until an Abort.  REQUIRES: connected, no other launch is under way.
  absl::Status Launch(absl::FunctionRef<ncclResult_t(ncclComm_t)> ops);
  // Frees the device and a blocked launch from what is launched, and everything else: at once every other call here
  // says so, and this one returns when no graph holds a collective of ours any more.  Again: nothing.
  void Abort();

 private:
  explicit NcclHandle(int device) : device_(device) {}
  absl::Status AwaitIdle(const std::string& what, absl::Time deadline);

  const int device_;
  absl::Mutex mu_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  bool launching_ ABSL_GUARDED_BY(mu_) = false;
  ncclComm_t scaffold_ ABSL_GUARDED_BY(mu_) = nullptr;  // non-blocking; null: let go
  ncclComm_t comm_ ABSL_GUARDED_BY(mu_) = nullptr;      // blocking; null: not there yet, or let go
  // The same until Connect has it.  NCCL writes it; ours once the scaffold is idle or aborted.
  ncclComm_t split_ = nullptr;
};

}  // namespace switchyard::comm
