// Finds the address by which others reach this host: the one from which it reaches them.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace switchyard::worker {

struct Route {
  std::string own;   // this host's address on the way there
  std::string peer;  // the other end's
};

// The way to `host` (a name or an address, without brackets), as this host would take it.  Nothing is sent, unless a
// name has to be resolved.  Unavailable: the name is not known or no way leads there, now.
absl::StatusOr<Route> RouteTo(const std::string& host, int port);

}  // namespace switchyard::worker
