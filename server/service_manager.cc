#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace switchyard::server {

bool HasServiceManager() { return std::getenv("NOTIFY_SOCKET") != nullptr; }

void TellServiceManager(absl::string_view state) {
  const char* const variable = std::getenv("NOTIFY_SOCKET");
  const absl::string_view path = variable == nullptr ? "" : variable;
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.empty() || (path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = 0;  // a name of Linux, not a file
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length);
  close(fd);
}

}  // namespace switchyard::server
