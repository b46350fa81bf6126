#include "workers/process/own_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace switchyard::worker {
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

absl::StatusOr<Route> RouteTo(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0)
    return absl::UnavailableError(
        absl::StrCat("no address is known for \"", host, "\" (DNS: ", gai_strerror(error), ")"));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    absl::StatusOr<Route> route = RouteOver(*target);
    if (route.ok()) return route;
    last = route.status();
  }
  return absl::UnavailableError(absl::StrCat("no way to ", host, ": ", last.message()));
}

}  // namespace switchyard::worker
