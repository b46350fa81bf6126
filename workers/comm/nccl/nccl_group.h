// NcclGroup: one rank's part of an NCCL group: its state and first error, the launches under way on the device, and the
// thread that watches them.
//
// The watchdog checks the launches and NCCL's asynchronous error every millisecond.  At an error, an expired deadline,
// the end of the host group or a peer's failure (PeerWatch) it makes the error sticky, informs the peers, frees the
// waiters on the host, and then aborts NCCL, which frees the streams.  In this order, a caller that sees a stream run
// on sees the error, too.
//
// Thread-safe.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/peer_watch.h"
#include "workers/comm/nccl/nccl_handle.h"
#include "workers/comm/nccl/nccl_state.h"
#include "workers/tensor/cuda/cuda_events.h"

namespace switchyard::comm {

class NcclGroup {
 public:
  // What the watchdog knows of a launch.
  struct Launch {
    OpKey key;
    absl::Time deadline;
    std::vector<int64_t> send_bytes, recv_bytes;  // [R] of an all-to-all, else empty
  };

  // `host`: of the same ranks, for messages; ends with this group.
  NcclGroup(int device, std::unique_ptr<Communicator> host);
  ~NcclGroup();  // End
  // In order if nothing is under way, or is done within two seconds; then the peers get as long to finish, who may
  // still read what NCCL frees with its communicator.  Else fails the group.  Again: nothing.
  void End();

  // The steps of forming: the watch over the peers (null: a world of one), then NCCL and the watchdog, then Ready.
  // REQUIRES: nothing is launched before.
  void StartPeerWatch(std::unique_ptr<Communicator> watch, const PeerWatchOptions& options);
  void StartWatchdog(std::unique_ptr<NcclHandle> nccl);
  absl::Status BecomeReady();

  Communicator& host() const { return *host_; }
  int device() const { return device_; }
  NcclHandle& nccl() const { return *nccl_; }

  absl::Status status() const;
  NcclState state() const;
  // Ends the group with this error, unless it has one.  Any thread; returns at once.  Returns the first error.
  absl::Status Fail(const absl::Status& status);
  // The same for an error that may be of NCCL's.  NCCL notices a peer's end first and does not say whose, so this asks
  // the watch before, for half a second at most; if a peer's own report comes in that time, that is the error.
  absl::Status FailByNccl(const absl::Status& error);

  // Counts a launch that the host is about to make, onto a stream or into a graph.  Returns its number, or why nothing
  // can be launched any more.  Its deadline holds from now on.
  absl::StatusOr<int64_t> Begin(const Launch& launch);
  // The launch is on its stream; `done` is recorded after it.
  void Watch(CudaEvents::Event done);
  // The launch is in the graph that its stream captures: NCCL has returned, and there is nothing to wait for.
  void Captured();
  // The launch did not get onto its stream by its deadline: fails the group, and names the late ranks.
  absl::Status NotLaunched(const absl::Status& why);
  // Blocks until the launch of this number is done, or the group has failed.
  absl::Status AwaitDone(int64_t number, absl::Time deadline) const;

 private:
  struct Pending {
    Launch launch;
    CudaEvents::Event done;  // null: not on its stream yet, or captured
    bool captured = false;

    bool in_nccl() const { return done == nullptr && !captured; }
  };

  void WatchUntilTheEnd();
  // Checks once.  False: the group has failed or is to end.
  bool Look();
  absl::Status RemoveDone();
  absl::Status Expired() const;
  std::string WhoIsLateNow() const;
  // Fails with what the watch says of a peer, and with NCCL's error if that came before.
  void FailByPeer(const absl::Status& status);
  std::string NameTheLost(absl::string_view nccl_error) const;
  // Blocks until the peers have finished what this rank has, or have left, or the deadline.
  void AwaitPeers(absl::Time deadline) const;
  PeerReport Report() const;

  const int device_;
  const std::unique_ptr<Communicator> host_;
  std::unique_ptr<NcclHandle> nccl_;
  std::unique_ptr<PeerWatch> peers_;

  mutable absl::Mutex mu_;
  NcclState state_ ABSL_GUARDED_BY(mu_) = NcclState::kForming;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);  // oldest first; they are done in this order
  int64_t launched_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t completed_ ABSL_GUARDED_BY(mu_) = 0;
  OpKey last_ ABSL_GUARDED_BY(mu_);
  std::string nccl_error_ ABSL_GUARDED_BY(mu_);  // set: the group is about to fail
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread watchdog_;
};

}  // namespace switchyard::comm
