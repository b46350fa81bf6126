// Connects the ranks of a new group, each to each: one TCP connection for every pair.
//
// A rank listens on its own address alone, publishes the port in the store, connects to all lower ranks and accepts all
// higher ones.  A connecting rank first sends its identity (a FrameHeader: token, epoch, world, rank) and gets the same
// as an answer; a connection that is of no peer, or silent for 5 s, is closed and does no harm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"
#include "workers/comm/core/op_key.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"

namespace switchyard::comm {

// The defaults are those of connections on which all-to-alls overtake sums.
struct SocketSettings {
  // The bytes of a connection that the kernel may hold, sent and not acknowledged included (it doubles the number for
  // its own bookkeeping).  They go before every later frame, but no more than these go in one round trip.  0: the
  // kernel decides (tcp_wmem).  At most net.core.wmem_max.
  int send_buffer_bytes = 64 << 10;
  int unsent_bytes = 16 << 10;  // of these, not sent yet; 0: no limit
};
inline constexpr SocketSettings kKernelChooses = {.send_buffer_bytes = 0, .unsent_bytes = 0};
// For connections on which classes take turns.  Unsent bytes go before the next turn, so their limit stays.
inline constexpr SocketSettings kSharingSockets = {.send_buffer_bytes = 0};

// [R] sockets, connected and non-blocking; of this rank itself -1.  Blocks until all peers are connected.
// REQUIRES: CheckGroupOptions, world > 1.
// Errors: the store's (Cancelled also while it connects); Unavailable (the address is not this host's; a peer refused
// or left), FailedPrecondition (a process that is no peer answers), DeadlineExceeded (names the ranks that did not
// connect).
absl::StatusOr<std::vector<UniqueFd>> ConnectMesh(const GroupOptions& options, const SocketSettings& settings,
                                                  RendezvousStore* store);

}  // namespace switchyard::comm
