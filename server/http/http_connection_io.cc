// The timer of an HTTP connection, and what sends its answers.
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "boost/asio/bind_executor.hpp"
#include "boost/asio/post.hpp"
#include "boost/beast/http/status.hpp"
#include "scheduler/base/clock.h"
#include "server/http/http_connection_exchange.h"

namespace switchyard::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr absl::Duration kLastBytesTimeout = absl::Seconds(1);  // for reading why a request was refused
constexpr size_t kMostDiscarded = 1 << 20;

bool IsLater(ssize_t result) { return result < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

void HttpConnection::SetTimer(absl::Duration after, Expired expired) {
  deadline_ = MonotonicNow() + after;
  expired_ = expired;
  if (deadline_ < armed_for_) ArmTimer();
}

void HttpConnection::ArmTimer() {
  armed_for_ = deadline_;
  timer_.expires_after(absl::ToChronoNanoseconds(deadline_ - MonotonicNow()));
  timer_.async_wait([own = shared_from_this(), id = ++timer_id_](const error_code& error) {
    if (!error && id == own->timer_id_ && own->state_ != State::kClosed) own->OnTimer();
  });
}

void HttpConnection::OnTimer() {
  armed_for_ = absl::InfiniteFuture();
  if (expired_ == nullptr) return;
  if (MonotonicNow() < deadline_) return ArmTimer();
  (this->*std::exchange(expired_, nullptr))();
}

void HttpConnection::QueueHead(HttpReply* reply, bool in_pieces) {
  static const HttpRequest* const kNone = new HttpRequest();  // of one that was refused before it was read
  if (shared_->options.finish_head)
    shared_->options.finish_head(exchange_ != nullptr ? exchange_->request() : *kNone, reply);
  if (shared_->draining.load()) keep_alive_ = false;
  if (in_pieces && http10_) keep_alive_ = false;
  absl::StrAppend(&waiting_, "HTTP/1.1 ", reply->status, " ",
                  std::string(http::obsolete_reason(static_cast<http::status>(reply->status))),
                  "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
                  "\r\n");
  if (!reply->type.empty()) absl::StrAppend(&waiting_, "Content-Type: ", reply->type, "\r\n");
  for (const auto& [name, value] : reply->headers) absl::StrAppend(&waiting_, name, ": ", value, "\r\n");
  if (!in_pieces) {
    absl::StrAppend(&waiting_, "Content-Length: ", reply->body.size(), "\r\n");
  } else if (!http10_) {
    absl::StrAppend(&waiting_, "Transfer-Encoding: chunked\r\n");
  }
  absl::StrAppend(&waiting_, "Connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
}

void HttpConnection::QueuePiece(absl::string_view bytes) {
  if (bytes.empty() || is_head_) return;
  if (http10_) {
    absl::StrAppend(&waiting_, bytes);
  } else {
    absl::StrAppend(&waiting_, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
  }
}

void HttpConnection::Flush() {
  if (is_sending_ || waiting_.empty() || state_ == State::kClosed) return;
  // Mostly the socket takes all.  An error is left to SendLater, as callers are in the midst of an answer.
  const ssize_t sent = Send(waiting_);
  if (sent == static_cast<ssize_t>(waiting_.size())) {
    waiting_.clear();
    if (state_ == State::kAnswering) SetTimer(shared_->options.quiet_time, &HttpConnection::OnQuiet);
    return;
  }
  sending_ = std::exchange(waiting_, std::string());
  sent_ = sent > 0 ? static_cast<size_t>(sent) : 0;
  is_sending_ = true;
  if (state_ == State::kAnswering) SetTimer(shared_->options.write_timeout, &HttpConnection::OnSlowReader);
  SendLater();
}

ssize_t HttpConnection::Send(absl::string_view bytes) {
  const int fd = answer_fd_.get() >= 0 ? answer_fd_.get() : socket_.native_handle();
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void HttpConnection::SendLater() {
  auto on_room = asio::bind_executor(strand_, [own = shared_from_this()](const error_code& error) {
    if (own->state_ == State::kClosed) return;
    const ssize_t sent = error ? 0 : own->Send(absl::string_view(own->sending_).substr(own->sent_));
    if (error || (sent < 0 && !IsLater(sent))) {
      own->is_sending_ = false;
      return own->Gone(HttpCut::kClientGone);
    }
    if (sent > 0) {
      own->sent_ += static_cast<size_t>(sent);
      if (own->sent_ == own->sending_.size()) return own->OnSent();
      if (own->state_ == State::kAnswering)
        own->SetTimer(own->shared_->options.write_timeout, &HttpConnection::OnSlowReader);
    }
    own->SendLater();
  });
  if (answer_fd_.get() < 0) return socket_.async_wait(Socket::wait_write, std::move(on_room));
  if (!answers_.has_value()) {
    error_code error;
    answers_.emplace(socket_.get_executor());
    answers_->assign(answer_fd_.get(), error);
    if (error) return asio::post(strand_, [own = shared_from_this()] { own->Gone(HttpCut::kClientGone); });
  }
  answers_->async_wait(asio::posix::stream_descriptor::wait_write, std::move(on_room));
}

void HttpConnection::OnSent() {
  is_sending_ = false;
  std::string().swap(sending_);
  if (!waiting_.empty()) {
    Flush();
    if (is_sending_) return;
  }
  if (state_ != State::kAnswering) return;
  SetTimer(shared_->options.quiet_time, &HttpConnection::OnQuiet);
  if (ended_) return FinishAnswer();
  if (exchange_ != nullptr) exchange_->OnWritten();
}

void HttpConnection::FinishAnswer() {
  ended_ = true;
  if (exchange_ != nullptr) exchange_->Forget();
  if (is_sending_ || !waiting_.empty()) return;  // OnSent comes back
  exchange_ = nullptr;
  std::string().swap(waiting_);  // an idle connection holds no memory
  Release();
  StopTimer();
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
                       if (got == 0 || (got < 0 && !IsLater(got))) return own->Close();
                       own->dropped_ += got > 0 ? static_cast<size_t>(got) : 0;
                       if (own->dropped_ > kMostDiscarded) return own->Close();
                       own->Drop();
                     }));
}

}  // namespace switchyard::server
