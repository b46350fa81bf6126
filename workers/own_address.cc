#include "workers/own_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

std::string AddressText(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

// A datagram socket sends nothing when it connects, but the kernel chooses the address that it would send from.
absl::StatusOr<Route> RouteOver(const addrinfo& target) {
  const int fd = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  const bool ok = connect(fd, target.ai_addr, target.ai_addrlen) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  const int error = errno;
  close(fd);
  if (!ok) return absl::UnavailableError(std::strerror(error));
  return Route{AddressText(reinterpret_cast<const sockaddr*>(&own), length),
               AddressText(target.ai_addr, target.ai_addrlen)};
}

}  // namespace

absl::StatusOr<Route> RouteTo(const std::string& host_port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == host_port.size())
    return absl::InvalidArgumentError(absl::StrCat("\"", host_port, "\" is not HOST:PORT"));
  std::string host = host_port.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), host_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot find ", host_port, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    absl::StatusOr<Route> route = RouteOver(*target);
    if (route.ok()) return route;
    last = route.status();
  }
  return absl::UnavailableError(absl::StrCat("no way to ", host_port, ": ", last.message()));
}

bool IsLoopbackAddress(const std::string& address) {
  in_addr v4;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, address.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace switchyard
