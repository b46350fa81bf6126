// A group over one TCP connection for every pair of ranks, on which all-to-alls overtake sums: for mode `preempt`.
//
// Every message is cut into frames (socket_wire.h), and between two frames the first class that has one goes: control,
// all-to-all, all-reduce.  So an all-to-all waits for what the kernel has taken, which is kept small (SocketSettings),
// and for one frame at most, however long a sum is under way (scheduler/PAPERS.md, "Deadlock of a local queue").  Over
// Gloo, where classes have connections of their own, both share the link instead. Messages of a call that the receiver
// has launched always come, whatever else is under way: each has its room, and the others have credit by class.
//
// Collectives, numbering, order of additions and errors are Communicator's and so Gloo's.  A call is launched without
// blocking; one I/O thread moves the bytes.  A peer's death closes its connection, which ends at once every wait for
// something that it owes, also one that is for another rank at the moment; Abort closes ours.
//
// Safety: neither encrypted nor authenticated beyond the group's secret, which every connection begins with
// (socket_mesh.h).  `address` must be one loopback or private address of this host.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/tcp/socket_mesh.h"
#include "workers/comm/tcp/socket_traffic.h"

namespace switchyard::comm {

struct SocketGroupOptions {
  GroupOptions group = {};
  int64_t frame_bytes = 64 << 10;  // of a frame at most, 4 to 256 KiB
  SocketSettings socket = {};
  SocketTraffic* traffic = nullptr;  // counts what is sent; outlives the group and its works; null: nobody asks
};

// Forms the group; blocks until every rank is there.  A world of one opens nothing.  `store` is used only during the
// call; to give up earlier, store->CancelWaits from another thread.  Errors: FormGlooGroup's.
absl::StatusOr<std::unique_ptr<Communicator>> FormSocketGroup(const SocketGroupOptions& options,
                                                              RendezvousStore* store);

}  // namespace switchyard::comm
