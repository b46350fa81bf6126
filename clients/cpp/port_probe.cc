#include "clients/cpp/port_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/host_port.h"

namespace switchyard::client {
namespace {

constexpr absl::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);  // and empty SETTINGS
// A ClientHello that ends too early, to which TLS answers with an alert.
constexpr absl::string_view kTornHello("\x16\x03\x01\0\x05\x01\0\0\x01\0", 10);
constexpr absl::string_view kAlert = "\x15\x03";
constexpr absl::string_view kGetMetrics = "GET /metrics HTTP/1.0\r\n\r\n";
constexpr absl::string_view kOwnWords = "switchyard: ";  // begins the text of a server that names its ports
constexpr char kMetricsText[] = "this is the page of metrics; gRPC is on the server's --port (50051 without that flag)";
constexpr size_t kMostRead = 64 << 10, kMostText = 300;

// Waits until the socket is ready.  False: not within the time.
bool Await(int fd, short events, absl::Time until) {
  for (;;) {
    pollfd polled = {fd, events, 0};
    const int ready = poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(until - absl::Now())));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0;
  }
}

int ConnectTo(const addrinfo& to, absl::Time until) {
  const int fd = socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = 0;
  socklen_t size = sizeof(error);
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return fd;
  if (errno == EINPROGRESS && Await(fd, POLLOUT, until) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
      error == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

int ConnectTo(absl::string_view address, absl::Time until) {
  const absl::StatusOr<rpc::HostPort> at = rpc::SplitHostPort(address);
  if (!at.ok()) return -1;
  addrinfo hints = {}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(at->host.c_str(), absl::StrCat(at->port).c_str(), &hints, &list) != 0) return -1;
  int fd = -1;
  for (const addrinfo* each = list; each != nullptr && fd < 0; each = each->ai_next) fd = ConnectTo(*each, until);
  freeaddrinfo(list);
  return fd;
}

// Sends bytes, and returns what comes back until the end, the time's end, or as soon as it is no HTTP/1.
std::string AnswerTo(absl::string_view address, absl::string_view bytes, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  const int fd = ConnectTo(address, until);
  if (fd < 0) return "";
  std::string answer;
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) {
    char piece[4096];
    while (answer.size() < kMostRead && Await(fd, POLLIN, until)) {
      const ssize_t got = recv(fd, piece, sizeof(piece), 0);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) break;
      answer.append(piece, static_cast<size_t>(got));
      if (answer[0] != 'H') break;
    }
  }
  close(fd);
  return answer;
}

// The line behind kOwnWords, if there is one of printable ASCII.
std::string OwnWords(absl::string_view answer) {
  const size_t at = answer.find(kOwnWords);
  if (at == absl::string_view::npos) return "";
  std::string text;
  for (const char c : answer.substr(at + kOwnWords.size(), kMostText)) {
    if (c < ' ' || c > '~') break;
    text += c;
  }
  return text;
}

}  // namespace

PortProbe ProbePort(absl::string_view address, absl::Duration timeout) {
  using Speaks = PortProbe::Speaks;
  const std::string answer = AnswerTo(address, kPreface, timeout);
  if (absl::StartsWith(answer, kAlert)) return {.speaks = Speaks::kTls};
  // HTTP/2 answers with frames; "HTTP/2.0 400" is what a page of metrics says that knows HTTP/1 alone.
  if (!answer.empty() && !absl::StartsWith(answer, "HTTP/")) return {.speaks = Speaks::kHttp2};
  PortProbe probe = {.speaks = answer.empty() ? Speaks::kNothing : Speaks::kHttp1, .text = OwnWords(answer)};
  if (!probe.text.empty()) return probe;
  if (probe.speaks == Speaks::kNothing && absl::StartsWith(AnswerTo(address, kTornHello, timeout), kAlert))
    return {.speaks = Speaks::kTls};
  // A page of metrics may know nothing but HTTP/1.
  const std::string page = AnswerTo(address, kGetMetrics, timeout);
  if (absl::StartsWith(page, "HTTP/")) probe.speaks = Speaks::kHttp1;
  if (absl::StrContains(page, "\n# TYPE switchyard_")) probe.text = kMetricsText;
  if (probe.text.empty()) probe.text = OwnWords(page);
  return probe;
}

}  // namespace switchyard::client
