// Addresses as users write them: HOST:PORT, with an IPv6 address in brackets, because it contains colons.
//
// Names are not resolved: any name but "localhost" is only text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::rpc {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// Returns "127.0.0.1:50051", "[::1]:50051".  `host` may have brackets or not.
std::string JoinHostPort(absl::string_view host, int port);

// Splits HOST:PORT.  InvalidArgument, quoting the text: no port of 1 to 65535, no host, or an IPv6 address without
// brackets.
absl::StatusOr<HostPort> SplitHostPort(absl::string_view text);

// Returns the host as system calls take it: an IPv6 address without brackets, anything else unchanged.
std::string BareHost(absl::string_view host);

// Whether only this machine can reach it: 127/8, ::1 (also in brackets, or mapped: ::ffff:127.0.0.1), "localhost".
bool IsLoopback(absl::string_view host);

// Whether the host is an IPv6 address, with or without brackets.
bool IsIpv6(absl::string_view host);

// Whether the host means every address of this machine: 0.0.0.0 or :: (also in brackets).
bool IsEveryAddress(absl::string_view host);

}  // namespace switchyard::rpc
