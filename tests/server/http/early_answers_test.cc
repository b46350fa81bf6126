// Clients that send all of their request before they read: what refuses it early reaches them whole, through the relay,
// plain and with TLS, and what is dropped behind it has bounds.
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admission/connection_gate.h"
#include "server/front/relay.h"
#include "server/front/tls_server.h"
#include "server/http/http_server.h"
#include "tests/becomes.h"
#include "tests/half_requests.h"
#include "tests/server/front/certificates.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr size_t kBody = size_t{64} << 20;
constexpr size_t kSystemBuffers = size_t{64} << 20;  // of sockets, at most

// A client that blocks, with TLS where it has a session.
class BlockingClient {
 public:
  BlockingClient(int port, SSL_CTX* tls) : fd_(ConnectTo(port)) {
    const timeval patience = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (tls == nullptr) return;
    session_.reset(SSL_new(tls));
    SSL_set_fd(session_.get(), fd_);
    EXPECT_EQ(SSL_connect(session_.get()), 1);
  }
  ~BlockingClient() { close(fd_); }
  BlockingClient(const BlockingClient&) = delete;
  BlockingClient& operator=(const BlockingClient&) = delete;

  // Returns how many bytes went before an error.
  size_t Send(size_t bytes) {
    const std::string piece(256 << 10, 'x');
    size_t sent = 0;
    while (sent < bytes) {
      const ssize_t got = Write(absl::string_view(piece).substr(0, bytes - sent));
      if (got <= 0) break;
      sent += static_cast<size_t>(got);
    }
    return sent;
  }
  ssize_t Write(absl::string_view bytes) {
    if (session_ != nullptr) return SSL_write(session_.get(), bytes.data(), static_cast<int>(bytes.size()));
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // All that comes before the end; `clean`: the other end has said that it is the end.
  std::string ReadAll(bool* clean) {
    std::string all;
    char bytes[4096];
    for (;;) {
      const ssize_t got =
          session_ != nullptr ? SSL_read(session_.get(), bytes, sizeof(bytes)) : recv(fd_, bytes, sizeof(bytes), 0);
      if (got > 0) {
        all.append(bytes, static_cast<size_t>(got));
        continue;
      }
      *clean = session_ != nullptr ? SSL_get_error(session_.get(), static_cast<int>(got)) == SSL_ERROR_ZERO_RETURN
                                   : got == 0;
      return all;
    }
  }

 private:
  struct Free {
    void operator()(SSL* session) const { SSL_free(session); }
  };
  const int fd_;
  std::unique_ptr<SSL, Free> session_;
};

class EarlyAnswersTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
    if (GetParam()) {
      const auto files = authority_.Issue({.name = "the server"});
      auto tls = TlsServer::Load({files.cert, files.key, ""});
      ASSERT_TRUE(tls.ok()) << tls.status();
      tls_ = *std::move(tls);
      context_.reset(SSL_CTX_new(TLS_client_method()));
    }
    HttpServer::Options options;
    options.body_bytes = 4 << 20;
    options.handler = [](const std::shared_ptr<HttpExchange>& exchange) { exchange->Reply({.body = "whole"}); };
    options.refuse = [](int status, const std::string& why) {
      return HttpReply{.status = status, .type = "text/plain", .body = why + ", and this is its end."};
    };
    server_ = std::make_unique<HttpServer>(std::move(options));
    listener_ = {.open =
                     [this](const std::string& name, int client_fd) {
                       return OpenNamedPair(name, [&](int fd) { server_->Adopt(fd, CopyForAnswers(client_fd)); });
                     },
                 .tls = tls_.get(),
                 .http2 = false};
    auto gate = ConnectionGate::Listen("127.0.0.1", 0, {});
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Open([this](int, int fd) { relay_.Take(&listener_, fd); });
  }
  ~EarlyAnswersTest() override {
    if (gate_ != nullptr) gate_->Close();
    relay_.Stop();
  }
  static std::string Head(const std::string& fields) {
    return absl::StrCat("POST / HTTP/1.1\r\nHost: h\r\n", fields, "\r\n\r\n");
  }
  // Sends the head and then the body, and only then reads: the answer and its end are whole.
  void ExpectRefusal(const std::string& head, int status) {
    BlockingClient client(gate_->port(), context_.get());
    ASSERT_EQ(client.Write(head), static_cast<ssize_t>(head.size()));
    EXPECT_EQ(client.Send(kBody), kBody);
    bool clean = false;
    const std::string answer = client.ReadAll(&clean);
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status, " ")));
    EXPECT_THAT(answer, EndsWith(", and this is its end."));
    EXPECT_TRUE(clean);
  }

  const model::TempDir dir_;
  TestAuthority authority_{dir_.path(), "own"};
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, FreeContext> context_;
  std::unique_ptr<TlsServer> tls_;
  std::unique_ptr<HttpServer> server_;
  RelayListener listener_;
  Relay relay_{{.threads = 2, .memory_bytes = 16 << 20}};
  std::unique_ptr<ConnectionGate> gate_;
};

TEST_P(EarlyAnswersTest, ReachAClientThatSendsAllOfItsBodyFirst) {
  ExpectRefusal(Head(absl::StrCat("Content-Length: ", kBody)), 413);
  ExpectRefusal(Head("Transfer-Encoding: chunked") + "4000000\r\n", 413);
  ExpectRefusal(Head("Content-Encoding: gzip\r\nContent-Length: 1000"), 415);
  ExpectRefusal(Head("Transfer-Encoding: gzip"), 501);
  ExpectRefusal("POST / HTTP/1.1\r\nHost: h\r\nX: ", 431);
}

TEST_P(EarlyAnswersTest, WhatIsDroppedBehindThemHasABound) {
  BlockingClient client(gate_->port(), context_.get());
  const std::string head = Head("Content-Length: 1000000000000");
  ASSERT_EQ(client.Write(head), static_cast<ssize_t>(head.size()));
  const size_t sent = client.Send(size_t{1} << 30);
  EXPECT_GE(sent, RelayConnection::kHttp1MostDropped / 64 * 63);  // what TLS adds is dropped, too
  EXPECT_LE(sent, RelayConnection::kHttp1MostDropped + kSystemBuffers);
}

// The connection counts as long as it lingers: not longer than kLingerLimit without a byte.
TEST_P(EarlyAnswersTest, AClientThatSendsNothingMoreIsClosed) {
  BlockingClient client(gate_->port(), context_.get());
  const std::string head = Head("Content-Length: 1000000000000");
  ASSERT_EQ(client.Write(head), static_cast<ssize_t>(head.size()));
  bool clean = false;
  EXPECT_THAT(client.ReadAll(&clean), StartsWith("HTTP/1.1 413 "));
  EXPECT_TRUE(clean);
  EXPECT_TRUE(Becomes([&] { return gate_->num_open() == 0; }, RelayConnection::kHttp1LingerLimit / 2));
}

// A byte now and then does not keep the connection: a place costs kLeastDropped a second.
TEST_P(EarlyAnswersTest, AClientThatSendsLittleMoreIsClosed) {
  BlockingClient client(gate_->port(), context_.get());
  const std::string head = Head("Content-Length: 1000000000000");
  ASSERT_EQ(client.Write(head), static_cast<ssize_t>(head.size()));
  bool clean = false;
  EXPECT_THAT(client.ReadAll(&clean), StartsWith("HTTP/1.1 413 "));
  const auto sends_until_closed = [&] {
    client.Write("x");
    return gate_->num_open() == 0;
  };
  EXPECT_TRUE(Becomes(sends_until_closed, RelayConnection::kHttp1LingerLimit / 2));
}

INSTANTIATE_TEST_SUITE_P(Connections, EarlyAnswersTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace switchyard::server
