// Workers whose links are encrypted: the same tokens as without, also after a worker was killed.
#include <signal.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

std::vector<std::vector<int32_t>> TokensOn(TestServer* server) {
  std::vector<v1::GenerateRequest> requests;
  for (const int length : {1, 33, 300}) {
    requests.push_back(IdsRequest(RandomIds(length, 256, static_cast<uint64_t>(length)), 24));
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const StreamSeen& seen : GenerateAll(server->client(), requests)) {
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    tokens.push_back(seen.choices.empty() ? std::vector<int32_t>() : seen.choices[0].token_ids);
  }
  return tokens;
}

TEST(EncryptedLinksTest, TheSameTokensAndALostWorkerComesBack) {
  const auto alone = TestServer::Start({.model = kTinyModel});
  // (With --placement=auto they would find each other's experts in shared memory, and exchange little.)
  const auto encrypted =
      TestServer::Start({.model = kTinyModel, .workers = 3, .flags = {"--encrypt_links", "--placement=static"}});
  ASSERT_TRUE(alone != nullptr && encrypted != nullptr);
  EXPECT_THAT(encrypted->process().Output(), testing::HasSubstr("group of 3 forms, epoch 1, encrypted links"));
  const auto wanted = TokensOn(alone.get());
  EXPECT_EQ(TokensOn(encrypted.get()), wanted);
  kill(encrypted->WorkerPids().at(1), SIGKILL);
  ASSERT_TRUE(encrypted->WaitReady(false, absl::Seconds(20)));
  ASSERT_TRUE(encrypted->WaitReady(true, absl::Seconds(60)));
  EXPECT_EQ(TokensOn(encrypted.get()), wanted);
}

}  // namespace
}  // namespace switchyard
