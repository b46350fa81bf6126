// TLS from end to end: clients, a worker from elsewhere and the metrics page of one server, who is refused, and
// certificates that change while it serves.
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/half_requests.h"
#include "tests/server/front/certificates.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(60);

class TlsTest : public testing::Test {
 protected:
  TlsTest() { std::signal(SIGPIPE, SIG_IGN); }  // OpenSSL writes to connections that the server has ended
  rpc::TlsFiles Of(TestAuthority& authority, const TestAuthority::Certificate& wanted) {
    const TestAuthority::Files own = authority.Issue(wanted);
    return {.ca = users_.file(), .cert = own.cert, .key = own.key};
  }
  // A server with one local worker and one that is still to come.
  std::unique_ptr<TestServer> Start() {
    std::ofstream(token_) << "a token of more than sixteen bytes";
    EXPECT_EQ(chmod(token_.c_str(), 0600), 0);
    return TestServer::Start({.model = kTinyModel,
                              .workers = 1,
                              .flags = {"--workers=2", "--placement=static", "--join_token_file=" + token_,
                                        "--tls_cert=" + server_.cert, "--tls_key=" + server_.key,
                                        "--tls_client_ca=" + users_.file(), "--tls_worker_ca=" + workers_.file()},
                              .wait_ready = false,
                              .tls = alice_});
  }
  std::unique_ptr<Process> StartWorker(const TestServer& server, const rpc::TlsFiles& tls) {
    std::vector<std::string> args = {Binary("switchyard-worker"), "--server=" + server.worker_address(),
                                     absl::StrCat("--model=", kTinyModel), "--threads=1",
                                     "--join_token_file=" + token_};
    for (const auto& [flag, file] : {std::pair("ca", tls.ca), std::pair("cert", tls.cert), std::pair("key", tls.key)}) {
      if (!file.empty()) args.push_back(absl::StrCat("--tls_", flag, "=", file));
    }
    return Process::Start(args);
  }
  // How a client is refused; empty: it is not.
  static std::string Refusal(const std::string& address, const rpc::TlsFiles& tls) {
    client::ClientOptions options;
    options.tls = tls;
    options.connect_timeout = absl::Seconds(10);
    const auto client = client::Client::Connect(address, options);
    if (!client.ok()) return std::string(client.status().message());
    const auto load = (*client)->GetLoad();
    return load.ok() ? "" : std::string(load.status().message());
  }

  // The metrics page as a client with that certificate sees it; empty: it does not.
  std::string PageSeenBy(const std::string& address, const rpc::TlsFiles& own) const {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
    SSL_CTX_load_verify_file(context.get(), users_.file().c_str());
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    if (!own.cert.empty()) {
      SSL_CTX_use_certificate_file(context.get(), own.cert.c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_use_PrivateKey_file(context.get(), own.key.c_str(), SSL_FILETYPE_PEM);
    }
    const std::unique_ptr<SSL, decltype(&SSL_free)> session(SSL_new(context.get()), &SSL_free);
    const int fd = ConnectTo(std::atoi(address.c_str() + address.rfind(':') + 1));
    SSL_set_fd(session.get(), fd);
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
    std::string page;
    if (SSL_connect(session.get()) == 1 &&
        SSL_write(session.get(), request.data(), static_cast<int>(request.size())) > 0) {
      char bytes[4096];
      for (int got = 0; (got = SSL_read(session.get(), bytes, sizeof(bytes))) > 0;) {
        page.append(bytes, static_cast<size_t>(got));
      }
    }
    close(fd);
    return page;
  }

  const model::TempDir dir_;
  TestAuthority users_{dir_.path(), "users"}, workers_{dir_.path(), "workers"}, others_{dir_.path(), "others"};
  TestAuthority::Files server_ = users_.Issue({.name = "localhost", .file = "server"});
  const rpc::TlsFiles alice_ = Of(users_, {.name = "alice"});
  const std::string token_ = dir_.path() + "/token";
};

TEST_F(TlsTest, ClientsAWorkerFromElsewhereAndThePageAreServed) {
  const std::vector<int32_t> prompt = RandomIds(40, 250, 1);
  StreamSeen alone;
  {
    const auto plain = TestServer::Start({.model = kTinyModel, .workers = 1});
    ASSERT_NE(plain, nullptr);
    alone = Generate(plain->client(), IdsRequest(prompt, 60));
  }
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const auto worker = StartWorker(*server, Of(workers_, {.name = "worker"}));
  ASSERT_NE(worker, nullptr);
  ASSERT_TRUE(server->WaitReady(true, kSoon)) << server->process().Output() << worker->Output();
  const StreamSeen seen = Generate(server->client(), IdsRequest(prompt, 60));
  ASSERT_TRUE(seen.ok()) << seen.end;
  EXPECT_EQ(seen.choices.at(0).token_ids, alone.choices.at(0).token_ids);
  EXPECT_THAT(Refusal(server->admin_address(), alice_), HasSubstr("no such method on this port")) << "TLS is there";
  const auto cli = Process::Start({Binary("switchyard"), "status", "--server=" + server->address(),
                                   "--tls_ca=" + alice_.ca, "--tls_cert=" + alice_.cert, "--tls_key=" + alice_.key});
  ASSERT_NE(cli, nullptr);
  EXPECT_EQ(cli->Wait(kSoon).value_or(-1), 0) << cli->Output();
  const std::string at = server->metrics_address();
  EXPECT_THAT(PageSeenBy(at, alice_), HasSubstr("switchyard_certificate_expiry_seconds"));
  EXPECT_EQ(PageSeenBy(at, {}), "") << "without a certificate";
  EXPECT_EQ(Scrape(at), "") << "plaintext";
}

TEST_F(TlsTest, ALocalWorkersPageStaysOnLoopbackWhereTheServersIsOnEveryAddress) {
  const auto server =
      TestServer::Start({.model = kTinyModel,
                         .workers = 1,
                         .flags = {"--metrics_host=0.0.0.0", "--tls_cert=" + server_.cert, "--tls_key=" + server_.key},
                         .tls = {.ca = users_.file()}});
  ASSERT_NE(server, nullptr);
  const auto load = server->client().GetLoad();
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_THAT(load->workers(0).metrics_address(), testing::StartsWith("127.0.0.1:"));
}

TEST_F(TlsTest, OthersAreRefused) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const std::string address = server->address();
  EXPECT_EQ(Refusal(address, alice_), "");
  EXPECT_THAT(Refusal(address, {}), HasSubstr("it speaks TLS; give --tls_ca=FILE")) << "plaintext";
  rpc::TlsFiles no_certificate = {.ca = users_.file()}, other_ca = alice_;
  other_ca.ca = others_.file();
  EXPECT_THAT(Refusal(address, no_certificate), HasSubstr(address));
  EXPECT_THAT(Refusal(address, other_ca), HasSubstr("not by a CA that is known here"));
  EXPECT_THAT(Refusal(address, Of(others_, {.name = "alice"})), HasSubstr(address)) << "of another authority";
  EXPECT_THAT(Refusal(address, Of(workers_, {.name = "alice"})), HasSubstr(address)) << "of the workers' authority";
  EXPECT_THAT(Refusal(address, Of(users_, {.name = "eve", .from = -absl::Hours(2), .until = -absl::Hours(1)})),
              HasSubstr(address))
      << "expired";
  // A client's certificate joins no group, nor does a worker without one.
  for (const rpc::TlsFiles& tls : {alice_, no_certificate}) {
    const auto worker = StartWorker(*server, tls);
    ASSERT_NE(worker, nullptr);
    EXPECT_TRUE(worker->WaitForOutput("no link to ", kSoon)) << worker->Output();
  }
  EXPECT_THAT(server->process().Output(), testing::Not(HasSubstr("worker 2 registered")));
  EXPECT_FALSE(server->WaitReady(true, absl::ZeroDuration()));
}

TEST_F(TlsTest, CertificatesMayChangeWhileItServes) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  const std::string address = server->address();
  ASSERT_EQ(Refusal(address, alice_), "");
  // An expired one is not used: the old stays.
  users_.Issue({.name = "localhost", .from = -absl::Hours(2), .until = -absl::Hours(1), .file = "server"});
  ASSERT_TRUE(server->process().WaitForOutput("expired", kSoon)) << server->process().Output();
  EXPECT_EQ(Refusal(address, alice_), "");
  // Nor is one whose name is another, by those who look; but the server uses it.
  users_.Issue({.name = "elsewhere", .also = {"DNS:elsewhere"}, .file = "server"});
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(Refusal(address, alice_), "another name"); }, kSoon))
      << Refusal(address, alice_) << server->process().Output();
  users_.Issue({.name = "localhost", .file = "server"});
  EXPECT_TRUE(WaitUntil([&] { return Refusal(address, alice_).empty(); }, kSoon)) << server->process().Output();
  EXPECT_TRUE(server->client().GetLoad().ok()) << "the first connection is still there";
}

}  // namespace
}  // namespace switchyard
