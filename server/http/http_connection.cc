#include "server/http/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "boost/asio/bind_executor.hpp"
#include "boost/asio/buffer.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/http/error.hpp"
#include "boost/beast/http/read.hpp"
#include "boost/beast/http/status.hpp"

namespace switchyard::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr absl::Duration kLastBytesTimeout = absl::Seconds(1);  // for reading why a request was refused
constexpr size_t kMostDiscarded = 1 << 20;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

class HttpConnection::Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::weak_ptr<HttpConnection> connection, Strand strand, HttpRequest request)
      : connection_(std::move(connection)), strand_(std::move(strand)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void Post(std::function<void()> work) override { asio::post(strand_, std::move(work)); }
  void Reply(HttpReply reply) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->SendHead(&reply, /*in_pieces=*/false);
    if (!connection->is_head_) connection->Send(std::move(reply.body));
    connection->FinishAnswer();
  }
  void Begin(HttpReply reply) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->SendHead(&reply, /*in_pieces=*/true);
    if (!reply.body.empty()) Write(std::move(reply.body));
  }
  void Write(std::string bytes) override {
    const auto connection = connection_.lock();
    if (connection == nullptr || bytes.empty() || connection->is_head_) return;
    connection->Send(connection->http10_ ? std::move(bytes)
                                         : absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n"));
  }
  void End() override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    if (!connection->http10_ && !connection->is_head_) connection->Send("0\r\n\r\n");
    connection->FinishAnswer();
  }
  void Cut() override {
    if (const auto connection = connection_.lock(); connection != nullptr) {
      connection->keep_alive_ = false;
      connection->FinishAnswer();
    }
  }
  bool is_writing() const override {
    const auto connection = connection_.lock();
    return connection != nullptr && (connection->is_sending_ || !connection->waiting_.empty());
  }
  void SetEvents(Events events) override {
    events_ = std::move(events);
    // The client may be gone already.
    if (connection_.lock() == nullptr) Post([own = shared_from_this()] { own->OnGone(); });
  }

  // For the connection, which calls no function of the handler after this.
  void Forget() {
    connection_.reset();
    events_ = {};
  }
  void OnWritten() {
    // A copy, as it may end the answer, which drops it.
    if (const auto written = events_.on_written) written();
  }
  void OnQuiet() {
    if (const auto quiet = events_.on_quiet) quiet();
  }
  void OnGone() {
    connection_.reset();
    if (auto gone = std::exchange(events_, {}).on_gone) gone();
  }

 private:
  std::weak_ptr<HttpConnection> connection_;  // null: the answer has ended, or the client is gone
  const Strand strand_;
  const HttpRequest request_;
  Events events_;
};

HttpConnection::HttpConnection(Socket socket, Strand strand, std::shared_ptr<HttpShared> shared, std::string peer)
    : socket_(std::move(socket)),
      strand_(std::move(strand)),
      shared_(std::move(shared)),
      peer_(std::move(peer)),
      timer_(strand_) {}

HttpConnection::~HttpConnection() { Hold(-held_); }

void HttpConnection::SetTimer(absl::Duration after, void (HttpConnection::*expired)()) {
  timer_.expires_after(absl::ToChronoNanoseconds(after));
  timer_.async_wait([own = shared_from_this(), id = ++timer_id_, expired](const error_code& error) {
    if (!error && id == own->timer_id_ && own->state_ != State::kClosed) (own.get()->*expired)();
  });
}

void HttpConnection::ReadHead() {
  if (shared_->draining.load()) return Close();
  state_ = State::kIdle;
  parser_.emplace();
  parser_->header_limit(shared_->options.head_bytes);
  parser_->body_limit(static_cast<uint64_t>(shared_->options.body_bytes));
  // The head's own time begins with its first byte, which may have come behind the last request.
  const auto begin = [own = shared_from_this()](const error_code& error) {
    if (error || own->state_ != State::kIdle) return;
    own->state_ = State::kReading;
    own->SetTimer(own->shared_->options.head_timeout, &HttpConnection::OnSlowRequest);
    http::async_read_header(
        own->socket_, own->buffer_, *own->parser_,
        asio::bind_executor(own->strand_, [own](const error_code& error, size_t) { own->OnHead(error); }));
  };
  if (buffer_.size() > 0) return begin({});
  SetTimer(shared_->options.idle_timeout, &HttpConnection::OnIdle);
  socket_.async_wait(Socket::wait_read, asio::bind_executor(strand_, begin));
}

void HttpConnection::OnHead(const error_code& error) {
  if (state_ != State::kReading) return;
  if (error == http::error::end_of_stream ||
      (error && error.category() != http::make_error_code(http::error::bad_method).category()))
    return Close();
  if (error == http::error::header_limit) {
    return Refuse(431, absl::StrCat("the request's head is longer than ", shared_->options.head_bytes, " bytes"));
  }
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrCat("the body: limit ", shared_->options.body_bytes, " bytes"));
  }
  if (error && BeginsAsHttp2()) return RefuseHttp2();
  if (error) return Refuse(400, absl::StrCat("not a request of HTTP/1.1: ", error.message()));
  const auto& head = parser_->get();
  const auto length_text = head[http::field::content_length], encoding = head[http::field::transfer_encoding];
  const bool is_number =
      std::all_of(length_text.begin(), length_text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (head.count(http::field::content_length) > 1 || !is_number)
    return Refuse(400, "Content-Length must be one number");
  if (head.count(http::field::transfer_encoding) > 0 && !boost::beast::iequals(encoding, "chunked"))
    return Refuse(501, "of transfer encodings only chunked is known");
  if (head.count(http::field::transfer_encoding) > 0 &&
      (head.count(http::field::content_length) > 0 || head.version() < 11))
    return Refuse(400, "Content-Length beside Transfer-Encoding, or Transfer-Encoding in HTTP/1.0");
  if (head.count(http::field::host) > 1 || (head.version() >= 11 && head.count(http::field::host) == 0))
    return Refuse(400, "HTTP/1.1 wants one Host header");
  const auto length = parser_->content_length();
  if (length && static_cast<int64_t>(*length) > shared_->options.body_bytes) {
    return Refuse(413, absl::StrCat("the body has ", *length, " bytes, limit ", shared_->options.body_bytes));
  }
  if (!Hold(length ? static_cast<int64_t>(*length) : 0)) return Refuse(429, "too many bytes of requests are under way");
  if (boost::beast::iequals(head[http::field::expect], "100-continue")) Send(kContinue);
  SetTimer(shared_->options.body_timeout, &HttpConnection::OnSlowRequest);
  ReadBody();
}

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return Handle();
  http::async_read_some(socket_, buffer_, *parser_,
                        asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error, size_t) {
                          own->OnBody(error);
                        }));
}

void HttpConnection::OnBody(const error_code& error) {
  if (state_ != State::kReading) return;
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrCat("the body has more than ", shared_->options.body_bytes, " bytes"));
  }
  if (error == http::error::partial_message) return Close();
  if (error && error.category() == http::make_error_code(http::error::bad_method).category())
    return Refuse(400, absl::StrCat("bad body: ", error.message()));
  if (error) return Close();
  if (const auto size = static_cast<int64_t>(parser_->get().body().size()); size > held_ && !Hold(size - held_))
    return Refuse(429, "too many bytes of requests are under way");
  ReadBody();
}

bool HttpConnection::Hold(int64_t bytes) {
  const int64_t all = shared_->body_bytes.fetch_add(bytes) + bytes;
  if (bytes > 0 && all > shared_->options.bodies_bytes) {
    shared_->body_bytes.fetch_sub(bytes);
    return false;
  }
  held_ += bytes;
  return true;
}

void HttpConnection::Handle() {
  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message) request.headers.emplace_back(field.name_string(), field.value());
  request.body = std::move(message.body());
  request.peer = peer_;
  http10_ = message.version() < 11;
  keep_alive_ = message.keep_alive() && !http10_;
  is_head_ = message.method() == http::verb::head;
  parser_.reset();
  in_pieces_ = ended_ = false;
  state_ = State::kAnswering;
  SetTimer(shared_->options.quiet_time, &HttpConnection::OnQuiet);
  exchange_ = std::make_shared<Exchange>(weak_from_this(), strand_, std::move(request));
  Watch();
  shared_->options.handler(exchange_);
}

// Bytes that come during an answer are the next request, and wait.
void HttpConnection::Watch() {
  if (watching_ || buffer_.size() > 0) return;
  watching_ = true;
  socket_.async_wait(Socket::wait_read,
                     asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error) {
                       own->watching_ = false;
                       if (error || own->state_ != State::kAnswering) return;
                       char byte = 0;
                       const ssize_t got = recv(own->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
                       if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) own->Gone();
                     }));
}

void HttpConnection::Gone() {
  const std::shared_ptr<Exchange> exchange = exchange_;
  Close();
  if (exchange != nullptr) exchange->OnGone();
}

void HttpConnection::OnQuiet() {
  SetTimer(shared_->options.quiet_time, &HttpConnection::OnQuiet);
  if (exchange_ != nullptr) exchange_->OnQuiet();
}

void HttpConnection::OnSlowRequest() { Refuse(408, "the request took too long to come"); }

bool HttpConnection::BeginsAsHttp2() const {
  const absl::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  return absl::StartsWith(bytes, "PRI * HTTP/2.0\r\n");
}

void HttpConnection::RefuseHttp2() {
  Answer({.status = 505, .type = "text/plain; charset=utf-8", .body = shared_->options.for_http2});
}

void HttpConnection::Refuse(int status, const std::string& why) { Answer(shared_->options.refuse(status, why)); }

void HttpConnection::Answer(HttpReply reply) {
  ++timer_id_;
  keep_alive_ = false;
  state_ = State::kAnswering;
  SendHead(&reply, /*in_pieces=*/false);
  Send(std::move(reply.body));
  FinishAnswer();
}

void HttpConnection::SendHead(HttpReply* reply, bool in_pieces) {
  if (exchange_ != nullptr && shared_->options.finish_head) shared_->options.finish_head(exchange_->request(), reply);
  if (shared_->draining.load()) keep_alive_ = false;
  in_pieces_ = in_pieces;
  if (in_pieces && http10_) keep_alive_ = false;
  std::string head = absl::StrCat(
      "HTTP/1.1 ", reply->status, " ", std::string(http::obsolete_reason(static_cast<http::status>(reply->status))),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()), "\r\n");
  if (!reply->type.empty()) absl::StrAppend(&head, "Content-Type: ", reply->type, "\r\n");
  for (const auto& [name, value] : reply->headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  if (!in_pieces) {
    absl::StrAppend(&head, "Content-Length: ", reply->body.size(), "\r\n");
  } else if (!http10_) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  absl::StrAppend(&head, "Connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
  Send(std::move(head));
}

void HttpConnection::Send(std::string bytes) {
  if (state_ == State::kClosed) return;
  waiting_ += bytes;
  Flush();
}

void HttpConnection::Flush() {
  if (is_sending_ || waiting_.empty() || state_ == State::kClosed) return;
  is_sending_ = true;
  sending_ = std::exchange(waiting_, std::string());
  if (state_ == State::kAnswering) SetTimer(shared_->options.write_timeout, &HttpConnection::OnSlowReader);
  asio::async_write(socket_, asio::buffer(sending_),
                    asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error, size_t) {
                      own->is_sending_ = false;
                      if (own->state_ == State::kClosed) return;
                      if (error) return own->Gone();
                      if (!own->waiting_.empty()) return own->Flush();
                      std::string().swap(own->sending_);
                      if (own->state_ != State::kAnswering) return;
                      own->SetTimer(own->shared_->options.quiet_time, &HttpConnection::OnQuiet);
                      if (own->ended_) return own->FinishAnswer();
                      if (own->exchange_ != nullptr) own->exchange_->OnWritten();
                    }));
}

void HttpConnection::FinishAnswer() {
  ended_ = true;
  if (exchange_ != nullptr) exchange_->Forget();
  if (is_sending_ || !waiting_.empty()) return;  // Flush comes back
  exchange_ = nullptr;
  Hold(-held_);
  ++timer_id_;
  if (keep_alive_) return ReadHead();
  LastBytes();
}

// Closing a socket with unread bytes may take the answer from the client.
void HttpConnection::LastBytes() {
  state_ = State::kLast;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  SetTimer(kLastBytesTimeout, &HttpConnection::OnIdle);
  Drop();
}

void HttpConnection::Drop() {
  socket_.async_wait(Socket::wait_read,
                     asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error) {
                       if (error || own->state_ != State::kLast) return;
                       char bytes[16 << 10];
                       const ssize_t got = recv(own->socket_.native_handle(), bytes, sizeof(bytes), MSG_DONTWAIT);
                       if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return own->Close();
                       own->dropped_ += got > 0 ? static_cast<size_t>(got) : 0;
                       if (own->dropped_ > kMostDiscarded) return own->Close();
                       own->Drop();
                     }));
}

void HttpConnection::CloseIfIdle() {
  if (state_ == State::kIdle) Close();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  ++timer_id_;
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  exchange_ = nullptr;
  absl::MutexLock lock(&shared_->mu);
  shared_->open.erase(shared_from_this());
}

}  // namespace switchyard::server
