// Connections to a page over HTTP that begin a request and never end it, and a scraper that asks like any other.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard {

inline int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

class HalfRequests {
 public:
  HalfRequests(int port, int count) {
    constexpr char kHalf[] = "GET /metrics HTTP/1.1\r\nHost:";
    for (int i = 0; i < count; ++i) {
      fds_.push_back(ConnectTo(port));
      EXPECT_EQ(send(fds_.back(), kHalf, sizeof(kHalf) - 1, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(kHalf) - 1));
    }
  }
  ~HalfRequests() {
    for (const int fd : fds_) close(fd);
  }
  HalfRequests(const HalfRequests&) = delete;
  HalfRequests& operator=(const HalfRequests&) = delete;

 private:
  std::vector<int> fds_;
};

// What comes within `seconds`; "" if nothing does.
inline std::string PageOf(int port, int seconds) {
  constexpr char kRequest[] = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
  const int fd = ConnectTo(port);
  const timeval wait = {seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  EXPECT_EQ(send(fd, kRequest, sizeof(kRequest) - 1, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(kRequest) - 1));
  std::string page;
  char buffer[4096];
  for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) page.append(buffer, static_cast<size_t>(got));
  close(fd);
  return page;
}

}  // namespace switchyard
