#include "server/http/http_connection.h"

#include <poll.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "boost/asio/bind_executor.hpp"
#include "boost/asio/buffer.hpp"
#include "boost/asio/error.hpp"
#include "boost/asio/post.hpp"
#include "boost/beast/core/read_size.hpp"
#include "boost/beast/http/error.hpp"
#include "boost/beast/http/read.hpp"
#include "proto/support/host_port.h"
#include "scheduler/base/clock.h"
#include "server/admission/peer_name.h"
#include "server/http/http_connection_exchange.h"

namespace switchyard::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// Of each connection, a second, that do not count for its client.
constexpr double kFreeRequests = 20;
constexpr size_t kMostKept = 16 << 10;  // of a buffer, while no request is there
constexpr size_t kMostRead = 64 << 10;  // of a head, at once
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

HttpConnection::HttpConnection(Socket socket, UniqueFd answer_fd, Strand strand, std::shared_ptr<HttpShared> shared,
                               std::string peer)
    : socket_(std::move(socket)),
      answer_fd_(std::move(answer_fd)),
      strand_(std::move(strand)),
      shared_(std::move(shared)),
      peer_(std::move(peer)),
      share_(rpc::IsLoopback(AddressOfPeer(peer_)) ? peer_ : ClientOfPeer(peer_)),
      rate_(shared_->rates.Of(ClientOfAddress(AddressOfPeer(peer_)), MonotonicNow())),
      own_rate_(kFreeRequests, kFreeRequests, MonotonicNow()),
      timer_(strand_) {}

HttpConnection::~HttpConnection() { Release(); }

void HttpConnection::ReadHead() {
  if (shared_->draining.load()) return Close();
  state_ = State::kIdle;
  parser_.emplace();
  // Beast does not count the lines that it has taken; TakeHead counts all.
  parser_->header_limit(std::numeric_limits<uint32_t>::max());
  head_left_ = shared_->options.head_bytes;
  parser_->body_limit(static_cast<uint64_t>(shared_->options.body_bytes));
  if (buffer_.size() > 0) return AwaitTurn();
  if (buffer_.capacity() > kMostKept) buffer_.shrink_to_fit();
  SetTimer(shared_->options.idle_timeout, &HttpConnection::OnIdle);
  socket_.async_wait(Socket::wait_read,
                     asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error) {
                       if (!error && own->state_ == State::kIdle) own->AwaitTurn();
                     }));
}

void HttpConnection::AwaitTurn() {
  const absl::Time now = MonotonicNow();
  if (own_rate_.Take(now)) return BeginHead();
  const std::optional<absl::Duration> wait = rate_->Reserve(now, shared_->options.turn_timeout);
  if (!wait.has_value()) {
    return Refuse(
        429, absl::StrCat("this client sends more than ", shared_->options.requests_a_second, " requests a second"));
  }
  if (*wait <= absl::ZeroDuration()) return BeginHead();
  SetTimer(*wait, &HttpConnection::BeginHead);
}

// The head's own time begins with its first byte, which may have come behind the last request.
void HttpConnection::BeginHead() {
  state_ = State::kReading;
  SetTimer(shared_->options.head_timeout, &HttpConnection::OnSlowRequest);
  // Not at once, or the requests that came together would nest.
  asio::post(strand_, [own = shared_from_this()] { own->TakeHead(); });
}

// The parser gets no more than a head may have, so that its end is within the limit however the bytes come.
void HttpConnection::TakeHead() {
  if (state_ != State::kReading) return;
  error_code error;
  const size_t taken = parser_->put(asio::buffer(buffer_.cdata(), head_left_), error);
  buffer_.consume(taken);
  head_left_ -= taken;
  if (error != http::error::need_more) return OnHead(error);
  if (buffer_.size() >= head_left_)
    return Refuse(431, absl::StrCat("the request's head is longer than ", shared_->options.head_bytes, " bytes"));
  socket_.async_read_some(
      buffer_.prepare(boost::beast::read_size(buffer_, kMostRead)),
      asio::bind_executor(strand_, [own = shared_from_this()](const error_code& read_error, size_t bytes) {
        own->buffer_.commit(bytes);
        if (own->state_ != State::kReading) return;
        if (read_error == asio::error::eof && own->parser_->got_some())
          return own->OnHead(http::error::partial_message);
        if (read_error) return own->Close();
        own->TakeHead();
      }));
}

void HttpConnection::OnHead(const error_code& error) {
  if (error == http::error::header_limit)
    return Refuse(431, "the request's head has a header in folded lines of more than 4096 bytes");  // Beast's limit
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
  if (const auto coding = head[http::field::content_encoding]; !coding.empty() && coding != "identity")
    return Refuse(415, "a body with Content-Encoding is not read; send it as it is");
  const auto length = parser_->content_length();
  if (length && static_cast<int64_t>(*length) > shared_->options.body_bytes) {
    return Refuse(413, absl::StrCat("the body has ", *length, " bytes, limit ", shared_->options.body_bytes));
  }
  if (boost::beast::iequals(head[http::field::expect], "100-continue")) {
    waiting_ += kContinue;
    Flush();
  }
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
  if (error == http::error::buffer_overflow)
    return Refuse(400, absl::StrCat("bad body: the head of a chunk is longer than ", kMostBuffered, " bytes"));
  if (error && error.category() == http::make_error_code(http::error::bad_method).category())
    return Refuse(400, absl::StrCat("bad body: ", error.message()));
  if (error) return Close();
  if (!Hold(static_cast<int64_t>(parser_->get().body().size()))) {
    return Refuse(429, absl::StrCat("requests under way hold ", shared_->bodies.held(), " bytes of bodies, limit ",
                                    shared_->bodies.limit(), "; this one has its share"));
  }
  ReadBody();
}

bool HttpConnection::Hold(int64_t bytes) {
  if (bytes <= held_) return true;
  if (shared_->bodies.Room(share_) < bytes - held_) return false;
  shared_->bodies.Add(share_, bytes - held_);
  held_ = bytes;
  return true;
}

void HttpConnection::Release() { shared_->bodies.Add(share_, -std::exchange(held_, 0)); }

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
  ended_ = false;
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
                       if (own->IsClientGone()) own->Gone(HttpCut::kClientGone);
                     }));
}

// Also where bytes of a next request wait before the end.
bool HttpConnection::IsClientGone() const {
  pollfd socket = {.fd = const_cast<Socket&>(socket_).native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void HttpConnection::Gone(HttpCut why) {
  if (state_ == State::kAnswering && shared_->options.on_cut) shared_->options.on_cut(why);
  const std::shared_ptr<Exchange> exchange = exchange_;
  Close();
  if (exchange != nullptr) exchange->OnGone(why == HttpCut::kSlowReader);
}

void HttpConnection::OnQuiet() {
  if (IsClientGone()) return Gone(HttpCut::kClientGone);
  SetTimer(shared_->options.quiet_time, &HttpConnection::OnQuiet);
  if (exchange_ != nullptr) exchange_->OnQuiet();
}

void HttpConnection::OnSlowRequest() { Refuse(408, "the request took too long to come"); }

bool HttpConnection::BeginsAsHttp2() const {
  const absl::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  return absl::StartsWith(bytes, "PRI * HTTP/2.0");  // the line's end may not be here yet
}

void HttpConnection::RefuseHttp2() {
  Answer({.status = 505, .type = "text/plain; charset=utf-8", .body = shared_->options.for_http2});
}

void HttpConnection::Refuse(int status, const std::string& why) { Answer(shared_->options.refuse(status, why)); }

void HttpConnection::Answer(HttpReply reply) {
  StopTimer();
  keep_alive_ = false;
  state_ = State::kAnswering;
  QueueHead(&reply, /*in_pieces=*/false);
  waiting_ += reply.body;
  Flush();
  FinishAnswer();
}

void HttpConnection::CloseIfIdle() {
  if (state_ == State::kIdle) Close();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  ++timer_id_;  // a wait that has ended already does not count
  StopTimer();
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (answers_.has_value()) answers_->release();
  const UniqueFd closed = std::move(answer_fd_);
  exchange_ = nullptr;
  absl::MutexLock lock(&shared_->mu);
  shared_->open.erase(shared_from_this());
}

}  // namespace switchyard::server
