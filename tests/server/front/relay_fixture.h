// A relay before a real gRPC server that echoes, its clients with and without TLS, and a client that writes frames
// itself.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpc/grpc.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/admission/connection_gate.h"
#include "server/admission/peer_name.h"
#include "server/front/relay.h"
#include "tests/becomes.h"
#include "tests/half_requests.h"
#include "tests/server/front/certificates.h"
#include "tests/server/front/frames.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {

// Answers /echo with what it got, /peer with gRPC's name of the client, and /silent never.
class EchoService : public grpc::CallbackGenericService {
 public:
  int open_calls() const { return open_.load(); }

 private:
  class Reactor : public grpc::ServerGenericBidiReactor {
   public:
    Reactor(grpc::GenericCallbackServerContext* context, std::atomic<int>* open) : context_(context), open_(open) {
      open_->fetch_add(1);
      StartRead(&message_);
    }
    void OnReadDone(bool ok) override {
      if (!ok || context_->method() == "/silent" || finished_.exchange(true)) return;
      if (context_->method() == "/peer") {
        const grpc::Slice peer(context_->peer());
        message_ = grpc::ByteBuffer(&peer, 1);
      }
      StartWriteAndFinish(&message_, {}, grpc::Status::OK);
    }
    void OnCancel() override {
      if (!finished_.exchange(true)) Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override {
      open_->fetch_sub(1);
      delete this;
    }

   private:
    grpc::GenericCallbackServerContext* const context_;
    std::atomic<int>* const open_;
    grpc::ByteBuffer message_;
    std::atomic<bool> finished_{false};
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Reactor(context, &open_);
  }
  std::atomic<int> open_{0};
};

inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

class RelayTest : public testing::Test {
 protected:
  // Once, and never ended: at its end gRPC may wait 10 s for what it has lost itself.
  static void SetUpTestSuite() { grpc_init(); }
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }
  ~RelayTest() override {
    if (gate_ != nullptr) gate_->Close();
    if (server_ == nullptr) return;
    gate_->EndConnections();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    relay_.Stop();
  }

  void Start(RelayListener listener) {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(64 << 20);
    inside_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    listener.open = [this](const std::string& name, int) {
      return OpenNamedPair(name, [this](int fd) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.listener_fd = -1;
        parameters.fd = fd;
        inside_->HandleNewConnection(&parameters);
      });
    };
    Listen(std::move(listener));
  }
  void Listen(RelayListener listener) {
    listener_ = std::move(listener);
    auto gate = ConnectionGate::Listen("127.0.0.1", 0, {});
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Open([this](int, int fd) { relay_.Take(&listener_, fd); });
  }
  std::unique_ptr<TlsServer> Certificates(bool with_authority) {
    const auto files = authority_.Issue({.name = "the server"});
    auto tls = TlsServer::Load({files.cert, files.key, with_authority ? authority_.file() : ""});
    EXPECT_TRUE(tls.ok()) << tls.status();
    return *std::move(tls);
  }
  static std::string Text(const std::string& file) {
    std::ifstream in(file);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  }
  std::shared_ptr<grpc::Channel> Channel(const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetMaxReceiveMessageSize(64 << 20);
    return grpc::CreateCustomChannel(absl::StrCat("localhost:", gate_->port()), credentials, args);
  }
  std::shared_ptr<grpc::Channel> Plain() { return Channel(grpc::InsecureChannelCredentials()); }
  std::shared_ptr<grpc::Channel> Tls(const TestAuthority::Files& own, const TestAuthority& trusted) {
    return Channel(grpc::SslCredentials({.pem_root_certs = Text(trusted.file()),
                                         .pem_private_key = own.key.empty() ? "" : Text(own.key),
                                         .pem_cert_chain = own.cert.empty() ? "" : Text(own.cert)}));
  }
  // Calls, and returns the answer; an error's text behind "error ".
  static std::string Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                          const std::string& message, absl::Duration limit = kWait) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + limit));
    const grpc::Slice slice(message);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, method, {}, &request, &answer, [&](grpc::Status end) {
      status = std::move(end);
      done.Notify();
    });
    done.WaitForNotification();
    return status.ok() ? BytesOf(answer) : absl::StrCat("error ", status.error_code(), " ", status.error_message());
  }

  void PassLargeMessages(const std::shared_ptr<grpc::Channel>& channel) {
    relay_.SetMemory(int64_t{1} << 30);
    std::vector<std::thread> calls;
    for (size_t i = 0; i < 4; ++i) {
      calls.emplace_back([&channel, i] {
        std::string message((8 << 20) + i, static_cast<char>('a' + i));
        for (size_t at = 0; at < message.size(); at += 4096) message[at] = static_cast<char>(at >> 12);
        EXPECT_TRUE(Call(channel, "/echo", message) == message);
      });
    }
    for (std::thread& call : calls) call.join();
  }

  const model::TempDir dir_;
  TestAuthority authority_{dir_.path(), "own"}, stranger_{dir_.path(), "strange"};
  EchoService service_;
  RelayListener listener_;
  Relay relay_{{.threads = 2, .memory_bytes = 16 << 20}};
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> inside_;
  std::unique_ptr<grpc::Server> server_;
};

// A client that writes frames itself.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(ConnectTo(port)) {}
  ~RawClient() { close(fd_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False: the other end has closed, or takes nothing for a second.
  bool Send(const std::string& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      pollfd wait = {fd_, POLLOUT, 0};
      if (poll(&wait, 1, 1000) != 1) return false;
      const ssize_t sent = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  void EndSending() const { shutdown(fd_, SHUT_WR); }
  // All that comes until the other end closes.
  std::string ReadAll() const {
    std::string all;
    char bytes[65536];
    for (pollfd wait = {fd_, POLLIN, 0}; poll(&wait, 1, 30000) == 1;) {
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got <= 0) return all;
      all.append(bytes, static_cast<size_t>(got));
    }
    ADD_FAILURE() << "the connection stays open";
    return all;
  }

 private:
  const int fd_;
};

// :method POST, :scheme http, :path, and what gRPC wants, without compression.
inline std::string CallHead(const std::string& path) {
  std::string block = "\x83\x86";
  const auto add = [&block](const std::string& name, const std::string& value) {
    block += std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
  };
  add(":path", path);
  add(":authority", "x");
  add("content-type", "application/grpc");
  add("te", "trailers");
  return block;
}
inline std::string BeginCall(uint32_t stream, const std::string& path) {
  return Frame(kHeadersFrame, kEndHeadersFlag, stream, CallHead(path));
}
inline const std::string kReset = std::string("\0\0\0\x08", 4);

}  // namespace switchyard::server
