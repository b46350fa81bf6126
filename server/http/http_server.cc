#include "server/http/http_server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/post.hpp"
#include "scheduler/base/io/unique_fd.h"
#include "server/admission/peer_name.h"
#include "server/http/http_connection.h"

namespace switchyard::server {
namespace {

namespace asio = boost::asio;

constexpr absl::Duration kLastAnswers = absl::Milliseconds(1500);

// gRPC's name for the client at the other end of a connection from the relay.
std::string PeerOf(int fd) {
  sockaddr_un at = {};
  socklen_t length = sizeof(at);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0 || at.sun_family != AF_UNIX) return "unix:";
  const size_t begin = offsetof(sockaddr_un, sun_path) + 1;
  return length > begin ? PeerOfRelayedName({at.sun_path + 1, length - begin}) : "unix:";
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(Options options)
      : shared_(std::make_shared<HttpShared>(std::move(options))), work_(context_.get_executor()) {
    for (int i = 0; i < shared_->options.threads; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~Impl() { Stop(); }

  void Adopt(int fd, UniqueFd answer_fd) {
    const std::string peer = PeerOf(fd);
    HttpConnection::Socket socket(context_);
    boost::system::error_code error;
    socket.assign(asio::local::stream_protocol(), fd, error);
    if (error) {
      close(fd);
      return;
    }
    socket.non_blocking(true, error);
    auto connection = std::make_shared<HttpConnection>(std::move(socket), std::move(answer_fd),
                                                       asio::make_strand(context_.get_executor()), shared_, peer);
    {
      absl::MutexLock lock(&shared_->mu);
      shared_->open.insert(connection);
    }
    asio::post(connection->strand(), [connection] { connection->Start(); });
  }

  // Without connections, and without work_, the threads have nothing left to do.
  void Stop() {
    if (threads_.empty()) return;
    shared_->draining.store(true);
    ForEach(&HttpConnection::CloseIfIdle);
    {
      const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(shared_->mu) { return shared_->open.empty(); };
      absl::MutexLock lock(&shared_->mu);
      shared_->mu.AwaitWithTimeout(absl::Condition(&none), kLastAnswers);
    }
    ForEach(&HttpConnection::Close);
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int num_connections() const {
    absl::MutexLock lock(&shared_->mu);
    return static_cast<int>(shared_->open.size());
  }

 private:
  void ForEach(void (HttpConnection::*action)()) {
    absl::MutexLock lock(&shared_->mu);
    for (const std::shared_ptr<HttpConnection>& connection : shared_->open) {
      asio::post(connection->strand(), [connection, action] { (connection.get()->*action)(); });
    }
  }

  asio::io_context context_;
  const std::shared_ptr<HttpShared> shared_;  // with the connections
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpServer::~HttpServer() = default;
void HttpServer::Adopt(int fd, int answer_fd) { impl_->Adopt(fd, UniqueFd(answer_fd)); }
void HttpServer::Stop() { impl_->Stop(); }
int HttpServer::num_connections() const { return impl_->num_connections(); }

}  // namespace switchyard::server
