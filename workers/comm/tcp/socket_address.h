// An IP address and a port, IPv4 or IPv6, for sockets and as text for rendezvous stores.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::comm {

class SocketAddress {
 public:
  // InvalidArgument: no IP address.
  static absl::StatusOr<SocketAddress> Of(const std::string& ip, int port);
  // Parses the text of ToString.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  // The address that a socket is bound to.
  static absl::StatusOr<SocketAddress> OfSocket(int fd);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }
  int family() const { return storage_.ss_family; }
  std::string ip() const;
  int port() const;
  std::string ToString() const;  // "127.0.0.1 4321"

 private:
  sockaddr_storage storage_ = {};
};

}  // namespace switchyard::comm
