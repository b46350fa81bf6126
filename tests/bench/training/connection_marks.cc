#include "tests/bench/training/connection_marks.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace switchyard::bench {
namespace {

bool IsConnected(int socket) {
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_family == AF_INET;
}

std::set<int> Connections() {
  std::set<int> found;
  DIR* const directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int socket = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && IsConnected(socket)) found.insert(socket);
  }
  closedir(directory);
  return found;
}

std::set<int>& Taken() {
  static std::set<int> taken;
  return taken;
}

}  // namespace

ConnectionMarks ConnectionMarks::OfNewConnections() {
  ConnectionMarks marks;
  for (const int socket : Connections()) {
    if (Taken().insert(socket).second) marks.sockets_.insert(socket);
  }
  return marks;
}

absl::Status ConnectionMarks::Mark(int type_of_service) const {
  for (const int socket : sockets_) {
    if (setsockopt(socket, IPPROTO_IP, IP_TOS, &type_of_service, sizeof(type_of_service)) != 0) {
      return absl::InternalError(absl::StrCat("cannot mark connection ", socket, ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::bench
