// One HTTP request and its answer, as handlers see them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;   // without the query
  std::string query;  // behind the question mark
  HttpHeaders headers;
  std::string body;
  std::string peer;  // gRPC's name for the client (admission/peer_name.h)

  // The values of all headers of that name, whose case does not matter.
  std::vector<absl::string_view> Values(absl::string_view name) const {
    std::vector<absl::string_view> values;
    for (const auto& [key, value] : headers) {
      if (absl::EqualsIgnoreCase(key, name)) values.emplace_back(value);
    }
    return values;
  }
  // The first of them; empty: there is none.
  absl::string_view Value(absl::string_view name) const {
    const std::vector<absl::string_view> values = Values(name);
    return values.empty() ? absl::string_view() : values.front();
  }
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";  // of the content; empty: there is none
  std::string body = {};
  HttpHeaders headers = {};
};

// The answer to one request: whole (Reply), or in pieces (Begin, Write …, End).
//
// All methods but Post are called on the connection's strand: from the handler, from a function that was posted, or
// from an event.  Handlers share it with the connection, which drops the events at the end.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // Runs `work` on the strand, soon.  Any thread; after the connection's end, too.
  virtual void Post(std::function<void()> work) = 0;

  // Frees the request's body, for handlers that have read it and go on for long.  Optional.
  virtual void DropBody() = 0;

  virtual void Reply(HttpReply reply) = 0;
  // Begins an answer in pieces; the reply's body is its first piece.
  virtual void Begin(HttpReply reply) = 0;
  virtual void Write(std::string bytes) = 0;
  // Ends the answer with these last bytes.
  virtual void End(std::string last = "") = 0;
  // Whether pieces wait to be sent.
  virtual bool is_writing() const = 0;
  struct Events {
    std::function<void()> on_written;  // all pieces were sent
    // Once: the client went away before the end, or (`is_slow`) did not read for HttpServer::Options::write_timeout.
    std::function<void(bool is_slow)> on_gone;
    std::function<void()> on_quiet;  // nothing was sent for HttpServer::Options::quiet_time
  };
  virtual void SetEvents(Events events) = 0;
};

}  // namespace switchyard::server
