// Which address of this host others reach it by: the one from which it reaches them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace switchyard {

struct Route {
  std::string own;   // this host's address on the way there
  std::string peer;  // the other end's
};

// The way to HOST:PORT (a name or an address; [ADDRESS]:PORT for IPv6), as this host would take it.  Nothing is sent,
// unless a name has to be resolved.
//   InvalidArgument: not HOST:PORT.  Unavailable: the name is not known or no way leads there, now.
absl::StatusOr<Route> RouteTo(const std::string& host_port);

// 127/8 or ::1, as an address.
bool IsLoopbackAddress(const std::string& address);

}  // namespace switchyard
