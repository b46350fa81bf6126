// Connects the ranks of a new group, each to each: one TCP connection for every pair.
//
// A rank listens on its own address alone, publishes the port in the store, connects to all lower ranks once each of
// these has published its own, and accepts all higher ones.  Both sides of a connection prove that they know the
// group's secret (socket_handshake.h), over TLS if GroupOptions::encrypt_links; a connection that is of no peer, or
// silent for 5 s (for 10 if it began to speak), is closed and does no harm.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "workers/comm/group/group_forming.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/comm/tcp/socket_stream.h"

namespace switchyard::comm {

// The defaults are those of connections that classes share.
struct SocketSettings {
  // The bytes of a connection that the kernel may hold, sent and not acknowledged included (it doubles the number for
  // its own bookkeeping).  They go before every later frame, but no more than these go in one round trip.  0: the
  // kernel decides (tcp_wmem).  At most net.core.wmem_max.
  int send_buffer_bytes = 0;
  int unsent_bytes = 16 << 10;  // of these, not sent yet; 0: no limit
};
inline constexpr SocketSettings kKernelChooses = {.unsent_bytes = 0};

// [R] connections; null for this rank itself.  Blocks until all peers are connected.
// REQUIRES: CheckGroupOptions, world > 1.
// Errors: the store's (Cancelled also while it connects); Unavailable (the address is not this host's; a peer refused
// or left; no TLS), FailedPrecondition (a process that is no peer answers), DeadlineExceeded (names the ranks that did
// not connect).
absl::StatusOr<std::vector<std::unique_ptr<SocketStream>>> ConnectMesh(const GroupOptions& options,
                                                                       const SocketSettings& settings,
                                                                       RendezvousStore* store);

}  // namespace switchyard::comm
