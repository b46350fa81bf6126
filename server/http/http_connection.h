// One connection of the HTTP server.  For http_server.cc alone.  Used on its strand, by the server's threads.
//
// What is sent goes to the socket at once, as far as it takes it: a token of a stream then costs one call of the
// system.  The one timer is set again only where a deadline comes before the one that it waits for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/local/stream_protocol.hpp"
#include "boost/asio/posix/stream_descriptor.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/core/string.hpp"
#include "boost/beast/http/field.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "scheduler/base/io/unique_fd.h"
#include "server/front/memory_budget.h"
#include "server/front/rate_limit.h"
#include "server/http/http_server.h"

namespace switchyard::server {

class HttpConnection;

// What the connections of a server share.
struct HttpShared {
  explicit HttpShared(HttpServer::Options given)
      : options(std::move(given)),
        own_rates(options.requests_a_second, options.requests_a_second),
        rates(options.rates != nullptr ? *options.rates : own_rates),
        bodies(options.bodies_bytes, /*little=*/64 << 10) {}
  const HttpServer::Options options;
  ClientRates own_rates;
  ClientRates& rates;   // of requests, by address: own_rates or the options'
  MemoryBudget bodies;  // by client; on loopback by connection
  std::atomic<bool> draining{false};
  absl::Mutex mu;
  absl::flat_hash_set<std::shared_ptr<HttpConnection>> open ABSL_GUARDED_BY(mu);  // kept alive until they close
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

  // Answers go into `answer_fd`, or into `socket` if that is none.
  HttpConnection(Socket socket, UniqueFd answer_fd, Strand strand, std::shared_ptr<HttpShared> shared,
                 std::string peer);
  ~HttpConnection();

  const Strand& strand() const { return strand_; }
  // Everything below runs on the strand.
  void Start() { ReadHead(); }
  // Closes the connection if it has no request.
  void CloseIfIdle();
  void Close();

 private:
  class Exchange;
  // Fields behind a chunked body are no headers: heads are judged before they come.  They are dropped.
  class Parser final : public boost::beast::http::request_parser<boost::beast::http::string_body> {
    void on_field_impl(boost::beast::http::field field, boost::beast::string_view name, boost::beast::string_view value,
                       boost::system::error_code& /*error*/) override {
      if (!is_header_done()) get().insert(field, name, value);
    }
  };
  // Unread bytes, so that the head of a chunk, which the parser does not bound, has an end.
  static constexpr size_t kMostBuffered = 128 << 10;
  enum class State { kIdle, kReading, kAnswering, kLast, kClosed };  // kLast: its last bytes go out

  void ReadHead();
  // When a request's first bytes are there: waits for its client's turn.
  void AwaitTurn();
  void BeginHead();
  // Gives the parser what has come of the head, and reads on until its end.
  void TakeHead();
  void OnHead(const boost::system::error_code& error);
  void ReadBody();
  void OnBody(const boost::system::error_code& error);
  void Handle();
  // Notices the client's end while an answer is under way.
  void Watch();
  bool IsClientGone() const;
  void Gone(HttpCut why);
  // Counts the bytes of this request's body that have come; false: there is no room for them.
  bool Hold(int64_t bytes);
  void Release();
  bool BeginsAsHttp2() const;
  void RefuseHttp2();
  void Refuse(int status, const std::string& why);
  // Answers what is no request, and ends the connection.
  void Answer(HttpReply reply);
  // Puts the head of an answer before what Flush sends next.
  void QueueHead(HttpReply* reply, bool in_pieces);
  // Puts a piece of an answer there, as a chunk where it goes out in chunks.
  void QueuePiece(absl::string_view bytes);
  void Flush();
  // As send(2).
  ssize_t Send(absl::string_view bytes);
  // Sends the rest of `sending_` when the socket takes it; what it takes gives the client its time anew.
  void SendLater();
  void OnSent();
  void FinishAnswer();
  using Expired = void (HttpConnection::*)();
  void SetTimer(absl::Duration after, Expired expired);
  void StopTimer() { expired_ = nullptr; }
  void ArmTimer();
  void OnTimer();
  void OnIdle() { Close(); }
  void OnSlowRequest();
  void OnSlowReader() { Gone(HttpCut::kSlowReader); }
  void OnQuiet();
  void LastBytes();
  void Drop();

  Socket socket_;
  UniqueFd answer_fd_;
  const Strand strand_;
  const std::shared_ptr<HttpShared> shared_;  // with the server and its other connections
  const std::string peer_;
  const std::string share_;                 // of shared_->bodies
  const std::shared_ptr<SharedRate> rate_;  // with the client's other connections
  RateLimit own_rate_;
  boost::asio::steady_timer timer_;
  std::optional<boost::asio::posix::stream_descriptor> answers_;  // answer_fd_, once it had no room
  uint64_t timer_id_ = 0;                                         // of the wait that counts
  absl::Time deadline_, armed_for_ = absl::InfiniteFuture();
  Expired expired_ = nullptr;  // runs at deadline_; null: nothing is due
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_{kMostBuffered};
  std::optional<Parser> parser_;
  size_t head_left_ = 0;  // of the head's limit
  bool keep_alive_ = false, http10_ = false, is_head_ = false;
  int64_t held_ = 0;                    // of shared_->bodies
  std::shared_ptr<Exchange> exchange_;  // with its handler
  bool ended_ = false, watching_ = false;
  std::string waiting_, sending_;  // bytes of the answer; the second while the socket takes no more
  size_t sent_ = 0;                // of sending_
  bool is_sending_ = false;
  size_t dropped_ = 0;  // bytes that came after the last answer
};

}  // namespace switchyard::server
