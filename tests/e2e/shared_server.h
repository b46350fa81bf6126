// One server for the tests of a program: the demo model on two workers, started at the first use.
//
// Tests leave it as they found it: ready and idle.
#pragma once

#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {

// Owned by googletest's environment: it ends before static destructors, and its log shows when a test failed.
class SharedServer : public testing::Environment {
 public:
  void TearDown() override { server_.reset(); }
  TestServer* Get() {
    if (!tried_)
      server_ = TestServer::Start(
          {.model = kDemoModel, .workers = 2, .flags = {"--max_queue=64"}, .request_timeout = absl::Seconds(120)});
    tried_ = true;
    return server_.get();
  }

 private:
  bool tried_ = false;
  std::unique_ptr<TestServer> server_;
};

inline SharedServer* const kSharedServer =
    static_cast<SharedServer*>(testing::AddGlobalTestEnvironment(new SharedServer));  // NOLINT: googletest takes it

class SharedServerTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = kSharedServer->Get();
    ASSERT_NE(server_, nullptr);
    client_ = &server_->client();
  }
  void TearDown() override {
    const bool idle = server_ == nullptr || server_->WaitIdle();
    EXPECT_TRUE(idle) << "requests or KV blocks are left";
  }

  TestServer* server_ = nullptr;
  client::Client* client_ = nullptr;
};

}  // namespace switchyard
