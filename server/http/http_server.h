// HTTP/1.1 server behind the relay (server/front): reads requests within limits and gives each to the handler.
//
// The relay has ended TLS; here are limits of a request's head, body and time, of one client's
// requests a second, and of the bytes that all bodies hold.  A connection has one request at a time.  A client that
// goes away, or takes nothing of its answer for Options::write_timeout, is noticed during an answer.  Refusals are
// answers: 400, 408, 413, 429, 431, 501, 505.  A few threads of its own.  Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/front/rate_limit.h"
#include "server/http/http_exchange.h"

namespace switchyard::server {

// Why an answer ended before its end.
enum class HttpCut { kClientGone, kSlowReader };

class HttpServer {
 public:
  struct Options {
    int threads = 2;
    uint32_t head_bytes = 16 << 10;  // with the empty line behind it; 128 KB at most
    int64_t body_bytes = 4 << 20;
    // Of all bodies, as far as they have come, until their handlers drop them.  Shared as MemoryBudget says: a body
    // beyond its client's share is refused (429), that of a client which holds less than 64 KB never.
    int64_t bodies_bytes = 96 << 20;
    absl::Duration head_timeout = absl::Seconds(10);
    absl::Duration body_timeout = absl::Seconds(30);
    absl::Duration idle_timeout = absl::Seconds(75);   // between requests
    absl::Duration write_timeout = absl::Seconds(30);  // in which a client that must read takes something
    absl::Duration quiet_time = absl::Seconds(15);
    // Answers a request, now or later.  Must not block.
    std::function<void(const std::shared_ptr<HttpExchange>& exchange)> handler = {};
    // Answers what a client of HTTP/2 begins with, such as gRPC's: plain text, "switchyard: this is the HTTP port; …".
    std::string for_http2 = "switchyard: this is an HTTP/1.1 port\n";
    // Makes the answer to a request that breaks a rule of HTTP or a limit, by status and reason.
    std::function<HttpReply(int status, const std::string& why)> refuse = {};
    // Completes the head of an answer before it goes out, on any thread; `request` is empty where one was refused
    // before it was read.
    std::function<void(const HttpRequest& request, HttpReply* reply)> finish_head = {};
    // Notes that an answer was cut off.
    std::function<void(HttpCut why)> on_cut = {};
    // Requests of one client, by address, beyond these wait for their turn, but for a few of each connection; one that
    // would wait longer than `turn_timeout` is refused (429).
    double requests_a_second = 1000;
    // Counts them, with what clients ask of other ports; of `requests_a_second`.  Borrowed; null: one of this server's.
    ClientRates* rates = nullptr;
    absl::Duration turn_timeout = absl::Seconds(2);
  };
  explicit HttpServer(Options options);
  ~HttpServer();  // Stop

  // Serves a connection, which it owns from now on: an end of a socket pair whose other end has the abstract name of
  // its client (relay.h).  Answers go into `answer_fd`, which it owns, too; -1: into `fd`.
  void Adopt(int fd, int answer_fd = -1);
  // Refuses further requests, gives answers that are under way a moment to end, ends all connections and blocks until
  // the threads have ended.
  void Stop();

  int num_connections() const;

  class Impl;  // of http_server.cc and http_connection.cc

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::server
