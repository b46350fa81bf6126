// A request on its connection, as its handler sees it.  For http_connection*.cc alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "boost/asio/post.hpp"
#include "server/http/http_connection.h"

namespace switchyard::server {

class HttpConnection::Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::weak_ptr<HttpConnection> connection, Strand strand, HttpRequest request)
      : connection_(std::move(connection)), strand_(std::move(strand)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void Post(std::function<void()> work) override { boost::asio::post(strand_, std::move(work)); }
  void DropBody() override {
    std::string().swap(request_.body);
    if (const auto connection = connection_.lock(); connection != nullptr) connection->Release();
  }
  void Reply(HttpReply reply) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->QueueHead(&reply, /*in_pieces=*/false);
    if (!connection->is_head_) connection->waiting_ += reply.body;
    connection->Flush();
    connection->FinishAnswer();
  }
  void Begin(HttpReply reply) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->QueueHead(&reply, /*in_pieces=*/true);
    connection->QueuePiece(reply.body);
    connection->Flush();
  }
  void Write(std::string bytes) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->QueuePiece(bytes);
    connection->Flush();
  }
  void End(std::string last) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    connection->QueuePiece(last);
    if (!connection->http10_ && !connection->is_head_) connection->waiting_ += "0\r\n\r\n";
    connection->Flush();
    connection->FinishAnswer();
  }
  bool is_writing() const override {
    const auto connection = connection_.lock();
    return connection != nullptr && (connection->is_sending_ || !connection->waiting_.empty());
  }
  void SetEvents(Events events) override {
    events_ = std::move(events);
    // The client may be gone already.
    if (connection_.lock() == nullptr) Post([own = shared_from_this()] { own->OnGone(/*is_slow=*/false); });
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
  void OnGone(bool is_slow) {
    connection_.reset();
    if (auto gone = std::exchange(events_, {}).on_gone) gone(is_slow);
  }

 private:
  std::weak_ptr<HttpConnection> connection_;  // null: the answer has ended, or the client is gone
  const Strand strand_;
  HttpRequest request_;
  Events events_;
};

}  // namespace switchyard::server
