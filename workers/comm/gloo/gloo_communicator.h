// A group over Gloo's TCP transport: ranks are processes (or threads, in tests) on one or several machines.
//
// Every class has a Gloo context (its connections) and a device (its I/O thread) of its own.  A collective posts its
// messages and returns; the I/O threads move the bytes while the caller computes.  Receives for the next collectives
// are posted before the present one is sent, so a small message arrives with one network latency.  Frames that fit the
// receiver's posted buffer go in one piece; longer ones send their rest once the receiver has made room, and the posted
// buffers grow to what was seen.
//
// A peer's death closes its connections, which fails every wait on it within milliseconds.  Abort closes ours.
// Closing a group and forming the next in the same process leaks nothing.
//
// Safety: Gloo neither encrypts nor authenticates.  `address` must be one loopback or private address of this host; a
// wildcard is refused.  Before a group is used every pair of ranks exchanges a handshake (token, epoch, rank, world),
// so a stranger, a duplicate rank or another world size fails the start with the reason.  Keep the ports behind a
// firewall.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

// Forms the group; blocks until every rank is there.  A world of one opens nothing.  `store` is used only during the
// call; to give up earlier, store->CancelWaits from another thread. Errors: InvalidArgument (options), AlreadyExists
// (duplicate rank), DeadlineExceeded (names who is missing), FailedPrecondition (handshake: a stranger, another epoch
// or world size), Cancelled, Unavailable (network).
absl::StatusOr<std::unique_ptr<Communicator>> FormGlooGroup(const GroupOptions& options, RendezvousStore* store);

}  // namespace switchyard::comm
