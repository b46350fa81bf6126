// A group whose collectives on device memory are NCCL's: one GPU a rank, one NCCL communicator a group and epoch.
//
// Messages, barriers and collectives on CPU views go through the host group that it is formed over.  Collectives on
// device memory run on a stream of the communicator's own, of high priority: behind what the caller's stream held at
// the call, and the caller's stream waits for them from Work::Wait on, so what is put on it in between runs beside
// them. All device collectives, of whichever class, are one sequence: NCCL runs a communicator's operations one after
// the other.  They can be captured (every Work must be waited for before the capture ends); graphs that hold
// collectives are destroyed before the communicator, and not launched after an error.  Streams that have waited for a
// Work are destroyed after it.
//
// Sums: NCCL's order, which depends on its choice of algorithm, and that on size and topology; with `deterministic` the
// algorithm is fixed, and the same ranks get the same bits in every run.  Exchanges, gathers and broadcasts move bits.
//
// What ends a group: NCCL's asynchronous error, a device's error, a deadline that passed (names the ranks that have not
// launched the collective, or launched another, or give other sizes), a peer's word that it failed, a dead or frozen
// peer, the end of the host group, Abort.  All ranks know within some 20 ms (a dead process: when its connections
// close; a frozen one: after watch.timeout).  Each rank aborts its own NCCL communicator, so streams are freed
// everywhere.  What no abort frees, a device that hangs in itself, ends the wait at the end of the step by its
// deadline.
//
// NCCL >= 2.19 (nccl_handle.h says why).  Not here: several devices a process, a Split with device collectives, memory
// registration.
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
  // Does not refuse ranks that share a device: for tests where there is but one.  NCCL itself refuses them unless it
  // takes them for different machines: each rank in a process of its own with its own NCCL_HOSTID, which makes them
  // talk over the network.  Nothing to serve with: they take the device in turns.
  bool allow_shared_device = false;
  PeerWatchOptions watch = {};
};

// The host groups under it: of the same ranks, in the same epoch, and nobody else's from now on.
struct NcclHostGroups {
  std::unique_ptr<Communicator> messages;
  std::unique_ptr<Communicator> watch;  // null in a world of one
};

// For `deterministic`: NCCL's algorithm and protocol become ring and simple, by the environment variables NCCL_ALGO and
// NCCL_PROTO, which is NCCL's only way to say so; what is set already stays.  Before any other thread runs.
void FixNcclReductions();

// Forms the group; blocks until every rank is there and has exchanged something with every other.  Rank 0 makes NCCL's
// id, and the ranks find it in `store`, which is used only during the call; to give up earlier, store->CancelWaits.
// Takes `host`, which ends, too, if this fails.
// Errors: InvalidArgument (no such device, host groups that do not fit), FailedPrecondition (ranks differ in NCCL's
// version or in `deterministic`, or share a device without
// allow_shared_device: names them), DeadlineExceeded (names who is missing), Cancelled,
// Unavailable (NCCL, device, network).
absl::StatusOr<std::unique_ptr<Communicator>> FormNcclGroup(const NcclGroupOptions& options, RendezvousStore* store,
                                                            NcclHostGroups host);

}  // namespace switchyard::comm
