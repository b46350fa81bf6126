// Whether this machine knows the name localhost: a bare root file system has no /etc/hosts.
#pragma once

#include <netdb.h>

namespace switchyard {

inline bool KnowsLocalhost() {
  addrinfo* found = nullptr;
  const bool known = getaddrinfo("localhost", nullptr, nullptr, &found) == 0;
  if (found != nullptr) freeaddrinfo(found);
  return known;
}

}  // namespace switchyard
