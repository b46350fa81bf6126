// Addresses as users write them: HOST:PORT, where an IPv6 address stands in brackets, because it has colons of its own.
//
// Nothing is resolved here: a name other than "localhost" is only text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::rpc {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// "127.0.0.1:50051", "[::1]:50051".  An IPv6 host may come with or without brackets.
std::string JoinHostPort(absl::string_view host, int port);

// The other way.  InvalidArgument, naming the text: no port of 1 to 65535, no host, an IPv6 address without brackets.
absl::StatusOr<HostPort> SplitHostPort(absl::string_view text);

// The host as the system's calls take it: an IPv6 address without its brackets, everything else as it is.
std::string BareHost(absl::string_view host);

// This machine alone can reach it: 127/8, ::1 (also in brackets, or mapped: ::ffff:127.0.0.1), "localhost".
bool IsLoopback(absl::string_view host);

// An IPv6 address, with or without brackets.
bool IsIpv6(absl::string_view host);

// Every address of this machine: 0.0.0.0 or :: (also in brackets).
bool IsEveryAddress(absl::string_view host);

}  // namespace switchyard::rpc
