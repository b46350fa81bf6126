// Names of calls' peers.
//
// gRPC names a peer "ipv4:10.0.0.1:4711" or "ipv6:%5B::1%5D:4711".  A connection that came through the relay
// (server/front) has a socket of this machine as its peer, whose abstract name says whose it is: gRPC reports
// "unix-abstract:ipv4:10.0.0.1:4711%23..." then.  Peers on the local workers' socket have no name.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::server {

// Returns the abstract name of a relayed connection from that address (as the system writes it) and port; `id` makes it
// unique on this machine.
std::string RelayedName(absl::string_view address, int port, absl::string_view id);

// Returns the abstract name in gRPC's name for a relayed connection; empty for any other peer.
std::string RelayedNameOfPeer(absl::string_view peer);

// The reverse: gRPC's name for a peer whose connection has that abstract name.
std::string PeerOfRelayedName(absl::string_view name);

// Returns gRPC's name for the peer as if it were connected without a relay: fit for logs.
std::string DirectPeer(absl::string_view peer);

// Returns the peer's address as the system writes it: ::1 for "ipv6:%5B::1%5D:4711".  Empty if the peer has no address.
std::string AddressOfPeer(absl::string_view peer);

// Returns the client whose share a connection from that address uses: itself, but of an IPv6 address its /64
// ("fd00::/64" for "fd00::1"), as one customer of a network has all of that.  Loopback and anything else stay as they
// are.
std::string ClientOfAddress(absl::string_view address);

// Returns the client of a call's peer: ClientOfAddress, behind "ipv4:" or "ipv6:"; a peer without address as it is.
std::string ClientOfPeer(absl::string_view peer);

}  // namespace switchyard::server
