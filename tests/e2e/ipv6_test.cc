// A server that listens on ::1, with and without brackets in its flag: gRPC, both kinds of metrics pages, its own
// workers, the CLI.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

bool MachineHasIpv6Loopback() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 any_port = {};
  any_port.sin6_family = AF_INET6;
  any_port.sin6_addr = in6addr_loopback;
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&any_port), sizeof(any_port)) == 0;
  if (fd >= 0) close(fd);
  return bound;
}

class Ipv6Test : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!MachineHasIpv6Loopback()) GTEST_SKIP() << "this machine has no ::1";
  }
};

TEST_P(Ipv6Test, AServerOnItServes) {
  const auto server =
      TestServer::Start({.model = kTinyModel, .workers = 2, .flags = {absl::StrCat("--host=", GetParam())}});
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(server->address(), StartsWith("[::1]:"));
  EXPECT_THAT(server->process().Output(), testing::Not(HasSubstr("plaintext"))) << "it is loopback";
  const StreamSeen seen = Generate(server->client(), IdsRequest({5, 6, 7}, 8));
  ASSERT_TRUE(seen.ok()) << seen.end;
  EXPECT_EQ(seen.choices[0].token_ids.size(), 8u);
  const auto cli = Process::Start({Binary("switchyard"), "status", "--server=" + server->address()});
  EXPECT_EQ(cli->Wait(kStartLimit), 0) << cli->Output();
  EXPECT_THAT(cli->Output(), HasSubstr("server     [::1]:"));
}

// The page's library may know no IPv6 (Debian 12's does not): then the start says so, else the page is there.
TEST_P(Ipv6Test, TheMetricsPageIsThereOrTheStartSaysWhyNot) {
  const auto server = Process::Start({Binary("switchyard-server"), absl::StrCat("--model=", kTinyModel), "--port=0",
                                      "--metrics_port=0", absl::StrCat("--metrics_host=", GetParam())});
  ASSERT_NE(server, nullptr);
  constexpr char kMark[] = "metrics on http://";
  if (!server->WaitForOutput(kMark, kStartLimit)) {
    EXPECT_EQ(server->Wait(kStartLimit), 2);
    EXPECT_THAT(server->Output(),
                HasSubstr("cannot listen on [::1]:0 (is it in use, or was libcivetweb built without"));
    return;
  }
  const std::string log = server->Output();
  const size_t at = log.find(kMark) + sizeof(kMark) - 1;
  EXPECT_THAT(Scrape(log.substr(at, log.find('/', at) - at)), HasSubstr("switchyard_num_requests_running"));
}

INSTANTIATE_TEST_SUITE_P(Hosts, Ipv6Test, testing::Values("::1", "[::1]"),
                         [](const auto& i) { return std::string(i.param) == "::1" ? "Plain" : "Bracketed"; });

}  // namespace
}  // namespace switchyard
