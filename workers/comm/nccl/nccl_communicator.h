// A group with collectives on device memory by NCCL: one GPU a rank, one NCCL communicator a group and epoch.
//
// Messages, barriers and collectives on CPU views go through the host group that it is formed over.  Collectives on
// device memory run on a stream of the communicator's own, of high priority.  They start after the work that the
// caller's stream held at the call, and Work::Wait makes the caller's stream wait for them, so work that is enqueued
// between the two runs beside them.  All device collectives, of all classes, are one sequence: NCCL runs a
// communicator's operations one after the other.  They can be captured (every Work must be waited for before the
// capture ends), where the deadline is that of the call; a Fence behind the graph has one for its run.  Graphs that
// hold collectives are destroyed before the communicator, and not launched after an error.  Streams that have waited
// for a Work are destroyed after it.
//
// Sums: NCCL's order, which depends on its choice of algorithm, and that on size and topology; with `deterministic` the
// algorithm is fixed, and the same ranks get the same bits in every run.  bf16 values are added in bf16, each addition
// rounded, where the host's sums round once: the bits of a group on devices and of one on CPUs differ.  Exchanges,
// gathers and broadcasts move bits.
//
// A group ends by NCCL's asynchronous error, a device's error, a deadline that passed (names the ranks that have not
// launched the collective, or launched another, or give other sizes), a peer's report that it failed, a dead or frozen
// peer, the end of the host group, or Abort.  All ranks know within some 20 ms (a dead process: when its connections
// close; a frozen one: after watch.timeout).  Each rank aborts its own NCCL communicator, so streams are freed
// everywhere.  No abort frees a device that hangs by itself: there the wait at the end of the step ends by its
// deadline.
//
// NCCL may notice a dead process before the watch does, and does not say which: its connections and ours close in an
// order of the kernel's, perhaps with the end of the device between them.  So NCCL's remote and system errors end the
// group only when the watch has an answer: a peer's own reason, a closed connection, that all are there, or, after half
// a second, the ranks that are silent.
//
// A Split is an NCCL communicator of its own over the same host group, with a watchdog and a watch (two threads) for
// its launches.  It is on this group's stream, as communicators that wait for each other on a device in different
// orders hang: their collectives have one order, and none runs beside another.  An error in one ends all.  (It is
// formed like the group, by an id: ncclCommSplit of a blocking communicator blocks until all ranks call it, and only
// the abort of the communicator that is split would end that.)
//
// NCCL >= 2.19 (nccl_handle.h says why).  Not here: several devices a process, memory registration.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/peer_watch.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

struct NcclGroupOptions {
  int device = 0;
  absl::Time deadline = {};    // by when the group must have formed, its first collectives included
  bool deterministic = false;  // FixNcclReductions must have been called
  // Accepts ranks that share a device: for tests on a machine with one.  NCCL itself refuses them unless it takes them
  // for different machines: each rank is then a process with its own NCCL_HOSTID, and they use the network.  Not for
  // serving: they take turns on the device.
  bool allow_shared_device = false;
  PeerWatchOptions watch = {};
};

// The host groups under it: of the same ranks, in the same epoch.  It owns them from then on.
struct NcclHostGroups {
  std::unique_ptr<Communicator> messages;
  std::unique_ptr<Communicator> watch;  // null in a world of one
};

// For `deterministic`: fixes NCCL's algorithm and protocol to ring and simple, by the environment variables NCCL_ALGO
// and NCCL_PROTO, as NCCL has no other way; variables that are set already stay.  Before any other thread runs.
void FixNcclReductions();

// Forms the group; blocks until every rank is there and has exchanged something with every other.  Rank 0 makes NCCL's
// id, and the ranks find it in `store`, which is used only during the call; to give up earlier, store->CancelWaits.
// Owns `host`, which ends if this fails.
// Errors: InvalidArgument (no such device, host groups that do not fit), FailedPrecondition (ranks differ in NCCL's
// version or in `deterministic`, or share a device without
// allow_shared_device: names them), DeadlineExceeded (names the missing ranks), Cancelled,
// Unavailable (NCCL, device, network).
absl::StatusOr<std::unique_ptr<Communicator>> FormNcclGroup(const NcclGroupOptions& options, RendezvousStore* store,
                                                            NcclHostGroups host);

}  // namespace switchyard::comm
