// The server's ports: who listens where, and what is asked for before anybody else than this machine may connect.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config.h"
#include "tests/server/config_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

class PortsTest : public ConfigTest {};

TEST_F(PortsTest, FollowThatOfUsersUnlessTheyAreGiven) {
  ServerConfig free = config_, given = config_, last = config_;
  ASSERT_TRUE(config_.Finish().ok()) << config_.Finish();
  EXPECT_EQ(config_.admin_port, 50052);
  EXPECT_EQ(config_.worker_port, 50053);
  free.port = 0;
  ASSERT_TRUE(free.Finish().ok());
  EXPECT_EQ(free.admin_port, 0);
  EXPECT_EQ(free.worker_port, 0);
  given.admin_port = -1;
  given.worker_port = 7;
  ASSERT_TRUE(given.Finish().ok());
  EXPECT_EQ(given.admin_port, -1);
  EXPECT_EQ(given.worker_port, 7);
  last.port = 65534;
  EXPECT_THAT(std::string(last.Finish().message()), HasSubstr("--port=65534: no ports are left after it"));
}

TEST_F(PortsTest, PortsMustDiffer) {
  config_.metrics_port = config_.port = 4000;
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("both 4000"));
  config_.port = 4000;
  config_.metrics_port = 4001;
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--admin_port and --metrics_port are both 4001"));
  config_.metrics_port = config_.port = config_.admin_port = config_.worker_port = 0;
  EXPECT_TRUE(config_.Finish().ok()) << "any free ones differ";
}

TEST_F(PortsTest, PlaintextStaysOnLoopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"}) {
    config_.host = host;
    EXPECT_TRUE(config_.Finish().ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "example.org", "127.evil.org", ""}) {
    config_.host = host;
    EXPECT_FALSE(config_.Finish().ok()) << host;
  }
  config_.host = "0.0.0.0";
  config_.insecure = true;
  EXPECT_TRUE(config_.Finish().ok());
}

TEST_F(PortsTest, AnAddressForOthersWantsTlsAndAWayToKnowWhoCalls) {
  config_.host = config_.metrics_host = "0.0.0.0";
  config_.tls_cert = "cert.pem";
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--tls_cert and --tls_key: one is given without"));
  config_.tls_key = "key.pem";
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--host=0.0.0.0: calls without a key on another address than loopback wants --insecure; or give "
            "--api_keys_file or --tls_client_ca");
  for (std::string* file : {&config_.api_keys_file, &config_.tls_client_ca}) {
    *file = "some.file";
    EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
    *file = "";
  }
  config_.tls_cert = config_.tls_key = "";
  config_.tls_worker_ca = "ca.pem";
  config_.host = config_.metrics_host = "127.0.0.1";
  EXPECT_EQ(std::string(config_.Finish().message()), "--tls_worker_ca=ca.pem: is for --tls_cert, which is not given");
}

// Without a token, any process that reaches the port could join as a rank and see its prompts.
TEST_F(PortsTest, WorkersFromElsewhereWantATokenUnlessOnLoopback) {
  config_.workers = config_.local_workers + 1;
  EXPECT_TRUE(config_.Finish().ok());
  config_.worker_host = "0.0.0.0";
  config_.insecure = true;
  const absl::Status status = config_.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--join_token_file: missing; with --worker_host=0.0.0.0 and 1 workers"));
  config_.join_token = "0123456789abcdef";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.join_token.clear();
  config_.workers = config_.local_workers;
  EXPECT_TRUE(config_.Finish().ok()) << "local workers have a token of their own";
}

}  // namespace
}  // namespace switchyard::server
