// A group over one TCP connection for every pair of ranks: ranks are processes on one or several machines, or threads
// in tests.
//
// Every message is cut into frames (socket_wire.h).  Classes that have something to send take turns on the connection,
// a frame each.  If they overtake, as in training jobs, the first class that has a frame goes instead: control,
// all-to-all, layer sum, all-reduce.  Then an all-to-all waits for one frame at most and for the bytes that the kernel
// holds unsent, which SocketSettings keep few, however long a sum is under way (scheduler/PAPERS.md, "Deadlock of a
// local queue").  Messages of a call that the receiver has launched always arrive, whatever else is under way: each has
// memory of its own, and the other messages have credit by class.
//
// A call is launched without blocking and writes what the sockets take; one I/O thread moves the rest.  A peer's death
// closes its connection, which ends at once every call that needs the peer, even if the call waits for another rank at
// the moment; Abort closes ours.  Closing a group and forming the next in the same process leaks nothing.
//
// Safety: both ends of every connection prove that they know the group's secret (socket_handshake.h).  What follows is
// encrypted and authenticated only with GroupOptions::encrypt_links.  `address` must be one loopback or private address
// of this host.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/tcp/socket_mesh.h"
#include "workers/comm/tcp/socket_traffic.h"
#include "workers/comm/tcp/socket_wire.h"

namespace switchyard::comm {

struct SocketGroupOptions {
  GroupOptions group = {};
  SocketFraming framing = {};
  SocketSettings socket = kKernelChooses;
  SocketTraffic* traffic = nullptr;  // counts what is sent; outlives the group and its works; null: not counted
};

// Forms the group; blocks until every rank is there.  A world of one opens nothing.  `store` is used only during the
// call; to give up earlier, store->CancelWaits from another thread.  Errors: InvalidArgument (options), AlreadyExists
// (duplicate rank), DeadlineExceeded (names the missing ranks), FailedPrecondition (another world size, or a process
// that is no peer answers), Cancelled, Unavailable (network).
absl::StatusOr<std::unique_ptr<Communicator>> FormSocketGroup(const SocketGroupOptions& options,
                                                              RendezvousStore* store);

}  // namespace switchyard::comm
