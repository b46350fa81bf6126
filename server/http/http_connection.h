// One connection of the HTTP server.  For http_server.cc alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/local/stream_protocol.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/strand.hpp"
#include "boost/beast/core/flat_buffer.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "server/http/http_server.h"

namespace switchyard::server {

class HttpConnection;

// What the connections of a server share.
struct HttpShared {
  HttpServer::Options options;
  std::atomic<int64_t> body_bytes{0};
  std::atomic<bool> draining{false};
  absl::Mutex mu;
  absl::flat_hash_set<std::shared_ptr<HttpConnection>> open ABSL_GUARDED_BY(mu);  // kept alive until they close
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

  HttpConnection(Socket socket, Strand strand, std::shared_ptr<HttpShared> shared, std::string peer);
  ~HttpConnection();

  const Strand& strand() const { return strand_; }
  // Everything below runs on the strand.
  void Start() { ReadHead(); }
  // Closes the connection if it has no request.
  void CloseIfIdle();
  void Close();

 private:
  class Exchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State { kIdle, kReading, kAnswering, kLast, kClosed };  // kLast: its last bytes go out

  void ReadHead();
  void OnHead(const boost::system::error_code& error);
  void ReadBody();
  void OnBody(const boost::system::error_code& error);
  void Handle();
  // Notices the client's end while an answer is under way.
  void Watch();
  void Gone();
  // Counts the bytes of this request's body; false: there is no room for them.
  bool Hold(int64_t bytes);
  bool BeginsAsHttp2() const;
  void RefuseHttp2();
  void Refuse(int status, const std::string& why);
  // Answers what is no request, and ends the connection.
  void Answer(HttpReply reply);
  void SendHead(HttpReply* reply, bool in_pieces);
  void Send(std::string bytes);
  void Flush();
  void FinishAnswer();
  void SetTimer(absl::Duration after, void (HttpConnection::*expired)());
  void OnIdle() { Close(); }
  void OnSlowRequest();
  void OnSlowReader() { Gone(); }
  void OnQuiet();
  void LastBytes();
  void Drop();

  Socket socket_;
  const Strand strand_;
  const std::shared_ptr<HttpShared> shared_;  // with the server and its other connections
  const std::string peer_;
  boost::asio::steady_timer timer_;
  uint64_t timer_id_ = 0;
  State state_ = State::kIdle;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  bool keep_alive_ = false, http10_ = false, is_head_ = false;
  int64_t held_ = 0;                    // of shared_->body_bytes
  std::shared_ptr<Exchange> exchange_;  // with its handler
  bool in_pieces_ = false, ended_ = false, watching_ = false;
  std::string waiting_, sending_;  // bytes of the answer
  bool is_sending_ = false;
  size_t dropped_ = 0;  // bytes that came after the last answer
};

}  // namespace switchyard::server
