// Posts a body over HTTP or HTTPS, with libcurl: one connection, which is kept between posts.
//
// Thread-compatible.  Uses no proxy and follows no redirect; a server's certificate must be of an authority that the
// system knows.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::server {

class HttpPost {
 public:
  // OK: libcurl can use the URL, which must be http:// or https:// with a host and without a user.
  static absl::Status CheckUrl(const std::string& url);

  // REQUIRES: CheckUrl(url) is OK.
  explicit HttpPost(const std::string& url);
  ~HttpPost();

  struct Reply {
    int status = 0;
    std::string body;                                   // at most 64 KB of it
    absl::Duration retry_after = absl::ZeroDuration();  // of its Retry-After, in seconds; zero: it has none
  };
  // Blocks for at most `timeout`, or about 100 ms after `give_up` (asked all the time) is true.  UNAVAILABLE: no whole
  // answer came, and why.
  absl::StatusOr<Reply> Send(const std::string& type, const std::string& body, absl::Duration timeout,
                             const std::function<bool()>& give_up);

 private:
  class Handle;
  const std::unique_ptr<Handle> handle_;
};

}  // namespace switchyard::server
