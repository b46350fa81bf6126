#include "clients/cpp/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/clients/fake_server.h"

namespace switchyard::client {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

v1::GenerateRequest TextRequest(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

TEST(ClientTest, GeneratesAStream) {
  FakeServer server;
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  std::string text;
  const absl::Status end =
      (*client)->Generate(TextRequest("hi"), [&text](const v1::GenerateResponse& part) { text += part.text(); });
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(text, "t0 t1 t2 t3");
}

TEST(ClientTest, ErrorsCarryReasonRetryAndMetadata) {
  FakeServer server;
  server.on_generate = [](auto*, const auto&, auto*) {
    return rpc::ToGrpcStatus(rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL,
                                                           "8 requests wait, limit 8", {{"limit", "8"}}),
                                            absl::Milliseconds(1500)),
                             "req-9");
  };
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status end = (*client)->Generate(TextRequest("hi"), nullptr);
  const ErrorDescription error = Describe(end);
  EXPECT_EQ(error.code, "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(error.retry_after, absl::Milliseconds(1500));
  EXPECT_EQ(error.metadata.at("limit"), "8");
  EXPECT_EQ(error.metadata.at("requestId"), "req-9");
  EXPECT_THAT(Explain(end),
              AllOf(HasSubstr("8 requests wait"), HasSubstr("QUEUE_FULL"), HasSubstr("try again in 1.5s")));
}

TEST(ClientTest, AQuotaOfTheDiskComesWithAdvice) {
  const grpc::Status wire =
      rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::DISK_QUOTA, "too many bytes"), "");
  EXPECT_THAT(Explain(FromGrpcStatus(wire, "here")),
              AllOf(HasSubstr("too many bytes [RESOURCE_EXHAUSTED DISK_QUOTA]"),
                    HasSubstr("delete jobs that have ended (switchyard train delete ID)")));
}

TEST(ClientTest, CancelEndsTheStreamOnBothSides) {
  FakeServer server;
  absl::Notification server_saw;
  server.on_generate = [&server_saw](grpc::ServerContext* context, const auto&,
                                     grpc::ServerWriter<v1::GenerateResponse>* writer) {
    for (int i = 0; !context->IsCancelled(); ++i) writer->Write(Part(0, i, "x"));
    server_saw.Notify();
    return grpc::Status::CANCELLED;
  };
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  absl::Notification began;
  auto stream = (*client)->StartGenerate(TextRequest("hi"), {.on_message =
                                                                 [&began](const v1::GenerateResponse&) {
                                                                   if (!began.HasBeenNotified()) began.Notify();
                                                                 },
                                                             .on_done = nullptr});
  began.WaitForNotification();
  stream->Cancel();
  EXPECT_EQ(stream->Wait().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(server_saw.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST(ClientTest, DestroyingAStreamCancelsIt) {
  FakeServer server;
  absl::Notification server_saw;
  server.on_generate = [&server_saw](grpc::ServerContext* context, const auto&,
                                     grpc::ServerWriter<v1::GenerateResponse>* writer) {
    for (int i = 0; !context->IsCancelled(); ++i) writer->Write(Part(0, i, "x"));
    server_saw.Notify();
    return grpc::Status::CANCELLED;
  };
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  absl::Status end;
  (*client)
      ->StartGenerate(TextRequest("hi"),
                      {.on_message = nullptr, .on_done = [&end](const absl::Status& status) { end = status; }})
      .reset();
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);
}

TEST(ClientTest, ASilentServerEndsAtTheDeadline) {
  FakeServer server;
  server.on_generate = [](grpc::ServerContext* context, const auto&, auto*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  ClientOptions options;
  options.generate_timeout = absl::Milliseconds(50);
  const auto client = Client::Connect(server.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status end = (*client)->Generate(TextRequest("hi"), nullptr);
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Describe(end).reason, "DEADLINE");
  EXPECT_THAT(Explain(end), HasSubstr("--timeout"));
}

TEST(ClientTest, AUnaryCallOfASilentServerEndsAtTheDeadline) {
  absl::Notification over;
  FakeServer server;
  server.before_load = [&over] { over.WaitForNotificationWithTimeout(absl::Seconds(60)); };
  ClientOptions options;
  options.call_timeout = absl::Milliseconds(50);
  const auto client = Client::Connect(server.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status end = (*client)->GetLoad().status();
  over.Notify();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Describe(end).reason, "DEADLINE");
  EXPECT_THAT(Explain(end), HasSubstr("--timeout"));
}

TEST(ClientTest, AServerThatIsGoneIsUnreachable) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  const auto client = Client::Connect(address);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(Describe(client.status()).reason, "UNREACHABLE");
  EXPECT_THAT(Explain(client.status()),
              AllOf(HasSubstr(address), HasSubstr("is the server running?"), HasSubstr("switchyard-server --model=")));
}

TEST(ClientTest, AddressesMustHaveAPort) {
  for (const char* wrong : {"", "localhost", ":50051", "host:0", "host:65536", "host:port", "[::1]"}) {
    const auto client = Client::Connect(wrong);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(client.status().message()), HasSubstr("HOST:PORT")) << wrong;
  }
}

TEST(ClientTest, AnIpv6AddressStandsInBrackets) {
  const absl::Status status = Client::Connect("::1:50051").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"::1:50051\": an IPv6 address stands in brackets: [::1]:50051"));
}

TEST(ClientTest, UnaryCalls) {
  FakeServer server;
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  v1::TokenizeRequest tokenize;
  tokenize.set_text("ab");
  const auto tokens = (*client)->Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->token_ids(), ElementsAre('a', 'b'));
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids('a');
  EXPECT_EQ((*client)->Detokenize(detokenize)->text(), "a");
  EXPECT_EQ((*client)->GetModelInfo()->model(), "fake");
  EXPECT_TRUE((*client)->GetLoad()->ready());
  const absl::Status abort = (*client)->Abort("req-5");
  EXPECT_EQ(Describe(abort).reason, "REQUEST_NOT_FOUND");
  EXPECT_TRUE(*(*client)->IsServing("readiness"));
  server.SetReady(false);
  EXPECT_FALSE(*(*client)->IsServing("readiness"));
  EXPECT_TRUE(*(*client)->IsServing(""));
  EXPECT_EQ((*client)->IsServing("nonsense").status().code(), absl::StatusCode::kNotFound);
}

// The error says why nothing answers: an invalid name, a port of another protocol, a port without a listener.
TEST(ClientTest, AnUnknownHostIsNotARefusal) {
  const absl::Status status = Client::Connect("no..host:50051").status();  // needs no name server
  EXPECT_EQ(Describe(status).reason, "UNREACHABLE");
  EXPECT_EQ(std::string(status.message()), "cannot reach no..host:50051: no address is known for \"no..host\" (DNS)");
}

// Connects to a server that sends this answer and closes.
absl::Status ConnectToWebServer(absl::string_view answer, std::string* at) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener, 8), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::thread web([listener, answer] {
    for (int peer; (peer = accept(listener, nullptr, nullptr)) >= 0; close(peer)) {
      char request[256];
      (void)!read(peer, request, sizeof(request));
      (void)!write(peer, answer.data(), answer.size());
    }
  });
  *at = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const absl::Status status = Client::Connect(*at).status();
  shutdown(listener, SHUT_RDWR);
  web.join();
  close(listener);
  return status;
}

TEST(ClientTest, WhatListensIsNamed) {
  const std::pair<absl::string_view, absl::string_view> cases[] = {
      {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
       "what listens there speaks HTTP/1, not gRPC: another program, or another port of the server"},
      {"HTTP/1.1 505 HTTP version not supported\r\n\r\nswitchyard: this is the HTTP port; gRPC is on port 7\n",
       "this is the HTTP port; gRPC is on port 7"},
      {"HTTP/1.0 200 OK\r\n\r\n# HELP x y\n# TYPE switchyard_up gauge\n",
       "this is the page of metrics; gRPC is on the server's --port (50051 without that flag)"},
      {"\x15\x03\x03", "it speaks TLS; give --tls_ca=FILE, or --tls for a certificate of a known CA"},
      {"",
       "it closed the connection at once: it has too many (--max_connections), wants TLS (--tls), or does not speak "
       "gRPC"}};
  for (const auto& [answer, why] : cases) {
    std::string at;
    const absl::Status status = ConnectToWebServer(answer, &at);
    EXPECT_EQ(Describe(status).reason, "UNREACHABLE");
    EXPECT_EQ(status.message(), absl::StrCat("cannot reach ", at, ": ", why));
  }
}

TEST(ClientTest, APortWhereNobodyListensIsARefusal) {
  const absl::Status status = Client::Connect("127.0.0.1:1").status();
  EXPECT_EQ(std::string(status.message()), "cannot reach 127.0.0.1:1: the connection was refused");
}

TEST(ClientTest, AUrlIsNoAddress) {
  const absl::Status status = Client::Connect("http://127.0.0.1:50051").status();
  EXPECT_EQ(Describe(status).reason, "BAD_INPUT");
  EXPECT_EQ(std::string(status.message()),
            "server address \"http://127.0.0.1:50051\": must be HOST:PORT; leave \"http://\" away");
}

}  // namespace
}  // namespace switchyard::client
