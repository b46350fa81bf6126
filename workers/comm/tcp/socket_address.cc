#include "workers/comm/tcp/socket_address.h"

#include <arpa/inet.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace switchyard::comm {

absl::StatusOr<SocketAddress> SocketAddress::Of(const std::string& ip, int port) {
  SocketAddress address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&address.storage_);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address.storage_);
  if (inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  address = SocketAddress();
  if (inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", ip, "\" is not an IP address"));
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  int port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) || port < 1 || port > 0xffff) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not an IP address and a port"));
  }
  return Of(parts[0], port);
}

absl::StatusOr<SocketAddress> SocketAddress::OfSocket(int fd) {
  SocketAddress address;
  socklen_t size = sizeof(address.storage_);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &size) != 0) {
    return absl::UnavailableError("the socket has no address");
  }
  return address;
}

std::string SocketAddress::ip() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof(text));
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof(text));
  }
  return text;
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string SocketAddress::ToString() const { return absl::StrCat(ip(), " ", port()); }

}  // namespace switchyard::comm
