// A small HTTP/1.1 client for tests: blocking, a connection for each call unless one is kept, byte for byte.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace switchyard {

struct HttpAnswer {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // without chunks' heads
  bool is_whole = false;                       // it has all that its head promises

  // The body as JSON; a discarded value if it is none.
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false); }
  // The data of server-sent events, in order.
  std::vector<std::string> Events() const;
};

class HttpConnectionForTests {
 public:
  // HOST:PORT; a connection that cannot be made is ended.  `receive_buffer`: of the socket, in bytes; 0: the system's
  // choice.
  explicit HttpConnectionForTests(const std::string& address, const std::string& from = "", int receive_buffer = 0);
  ~HttpConnectionForTests();

  bool Send(absl::string_view bytes);
  // Sends a request with Host and, for a body, Content-Length.
  bool Request(const std::string& method, const std::string& path, const std::string& body = "",
               const std::vector<std::string>& headers = {});
  HttpAnswer Read(absl::Duration timeout = absl::Seconds(60));
  // Reads until at least so many bytes of the answer's body have come, or it ends.
  std::string ReadSome(size_t bytes, absl::Duration timeout = absl::Seconds(60));
  // Waits for further bytes of answers, at most so many, which stay unread; false: none came.
  bool Fetch(absl::Duration timeout, size_t most = kReadBytes) { return Fill(absl::Now() + timeout, most); }
  const std::string& unread() const { return buffer_; }
  bool is_ended() const { return ended_; }  // by the other end, as far as was read
  // Whether the other end closes within the time; what comes until then is dropped.
  bool WaitClosed(absl::Duration timeout);
  void Close();

 private:
  static constexpr size_t kReadBytes = 64 << 10;
  bool Fill(absl::Time until, size_t most = kReadBytes);  // reads some bytes; false: none came

  std::string address_;
  int fd_ = -1;
  bool ended_ = false;
  std::string buffer_;
};

HttpAnswer HttpCall(const std::string& address, const std::string& method, const std::string& path,
                    const std::string& body = "", const std::vector<std::string>& headers = {});

}  // namespace switchyard
