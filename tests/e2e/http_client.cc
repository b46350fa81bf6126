#include "tests/e2e/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace switchyard {

std::vector<std::string> HttpAnswer::Events() const {
  std::vector<std::string> events;
  for (absl::string_view block : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&block, "data: ")) events.emplace_back(block);
    // "event: NAME\ndata: …"
    const size_t data = block.find("\ndata: ");
    if (absl::StartsWith(block, "event: ") && data != absl::string_view::npos)
      events.emplace_back(block.substr(data + 7));
  }
  return events;
}

HttpConnectionForTests::HttpConnectionForTests(const std::string& address, const std::string& from, int receive_buffer)
    : address_(address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return;
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  if (!from.empty()) {
    inet_pton(AF_INET, from.c_str(), &to.sin_addr);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) Close();
  }
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) Close();
}

HttpConnectionForTests::~HttpConnectionForTests() { Close(); }

void HttpConnectionForTests::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool HttpConnectionForTests::Send(absl::string_view bytes) {
  while (fd_ >= 0 && !bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return fd_ >= 0;
}

bool HttpConnectionForTests::Request(const std::string& method, const std::string& path, const std::string& body,
                                     const std::vector<std::string>& headers) {
  std::string text = absl::StrCat(method, " ", path, " HTTP/1.1\r\n");
  const bool names_host = std::any_of(headers.begin(), headers.end(),
                                      [](const std::string& header) { return absl::StartsWith(header, "Host:"); });
  if (!names_host) absl::StrAppend(&text, "Host: ", address_, "\r\n");
  for (const std::string& header : headers) absl::StrAppend(&text, header, "\r\n");
  if (!body.empty()) absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  return Send(absl::StrCat(text, "\r\n", body));
}

bool HttpConnectionForTests::Fill(absl::Time until, size_t most) {
  if (fd_ < 0) return false;
  pollfd waits = {.fd = fd_, .events = POLLIN, .revents = 0};
  const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(until - absl::Now()));
  if (poll(&waits, 1, static_cast<int>(left)) <= 0) return false;
  char bytes[kReadBytes];
  const ssize_t got = recv(fd_, bytes, std::min(most, sizeof(bytes)), 0);
  ended_ = got <= 0;
  if (ended_) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

HttpAnswer HttpConnectionForTests::Read(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  HttpAnswer answer;
  size_t head = 0;
  while ((head = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill(until)) return answer;
  }
  const std::vector<std::string> lines = absl::StrSplit(buffer_.substr(0, head), "\r\n");
  buffer_.erase(0, head + 4);
  if (!absl::SimpleAtoi(lines[0].substr(9, 3), &answer.status)) return answer;
  if (answer.status == 100) return Read(timeout);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> field = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
    answer.headers[absl::AsciiStrToLower(field.first)] = field.second;
  }
  if (answer.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      size_t end = 0;
      while ((end = buffer_.find("\r\n")) == std::string::npos) {
        if (!Fill(until)) return answer;
      }
      const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < end + 2 + size + 2) {
        if (!Fill(until)) return answer;
      }
      answer.body += buffer_.substr(end + 2, size);
      buffer_.erase(0, end + 2 + size + 2);
      if (size == 0) break;
    }
    answer.is_whole = true;
    return answer;
  }
  size_t length = 0;
  if (!absl::SimpleAtoi(answer.headers["content-length"], &length)) {
    while (Fill(until)) {
    }
    answer.body = std::move(buffer_);
    return answer;
  }
  while (buffer_.size() < length) {
    if (!Fill(until)) break;
  }
  answer.is_whole = buffer_.size() >= length;
  answer.body = buffer_.substr(0, length);
  buffer_.erase(0, length);
  return answer;
}

std::string HttpConnectionForTests::ReadSome(size_t bytes, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (buffer_.size() < bytes && Fill(until)) {
  }
  return std::exchange(buffer_, std::string());
}

bool HttpConnectionForTests::WaitClosed(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (Fill(until)) buffer_.clear();
  return absl::Now() < until;
}

HttpAnswer HttpCall(const std::string& address, const std::string& method, const std::string& path,
                    const std::string& body, const std::vector<std::string>& headers) {
  HttpConnectionForTests connection(address);
  if (!connection.Request(method, path, body, headers)) return {};
  return connection.Read();
}

}  // namespace switchyard
