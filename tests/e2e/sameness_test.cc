// Greedy output does not depend on how it was computed: workers, company, prefix reuse, chunks, blocks, preemption.
//
// Each factor alone against one worker with the defaults and requests one at a time.  A model of fp32-exact fixtures'
// size, so that a server starts in a second.
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

constexpr int kTokens = 24;

// Lengths on both sides of blocks (16) and chunks (7); two that share a prefix of 40.
std::vector<v1::GenerateRequest> Prompts() {
  std::vector<v1::GenerateRequest> requests;
  for (int length : {1, 7, 15, 16, 17, 33, 64, 150})
    requests.push_back(IdsRequest(RandomIds(length, 256, static_cast<uint64_t>(length)), kTokens));
  for (uint64_t seed : {91, 92}) {
    std::vector<int32_t> ids = RandomIds(40, 256, 90);
    for (int32_t id : RandomIds(9, 256, seed)) ids.push_back(id);
    requests.push_back(IdsRequest(ids, kTokens));
  }
  return requests;
}

using Tokens = std::vector<std::vector<int32_t>>;

Tokens TokensOf(const std::vector<StreamSeen>& seen) {
  Tokens out;
  for (const StreamSeen& one : seen) {
    EXPECT_TRUE(one.ok()) << one.end << " " << one.fault;
    out.push_back(one.choices.empty() ? std::vector<int32_t>() : one.choices[0].token_ids);
  }
  return out;
}

// One worker, one request at a time, nothing shared.
const Tokens& Reference() {
  static const Tokens* const kReference = [] {
    auto* out = new Tokens();
    const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--prefix_reuse=false"}});
    if (server == nullptr) return out;
    for (const v1::GenerateRequest& request : Prompts())
      out->push_back(TokensOf({Generate(server->client(), request)})[0]);
    return out;
  }();
  return *kReference;
}

struct Factor {
  const char* name;
  int workers;
  std::vector<std::string> flags;
};

class SamenessTest : public testing::TestWithParam<Factor> {};

TEST_P(SamenessTest, GreedyTokensAreTheReference) {
  ASSERT_EQ(Reference().size(), Prompts().size());
  const auto server =
      TestServer::Start({.model = kTinyModel, .workers = GetParam().workers, .flags = GetParam().flags});
  ASSERT_NE(server, nullptr);
  // All at once, then again (cached prefixes, if they are on), then 32 at once.
  EXPECT_EQ(TokensOf(GenerateAll(server->client(), Prompts())), Reference());
  EXPECT_EQ(TokensOf(GenerateAll(server->client(), Prompts())), Reference());
  std::vector<v1::GenerateRequest> many;
  Tokens expected;
  for (size_t i = 0; i < 32; ++i) {
    many.push_back(Prompts()[i % Prompts().size()]);
    expected.push_back(Reference()[i % Prompts().size()]);
  }
  EXPECT_EQ(TokensOf(GenerateAll(server->client(), many)), expected);
  EXPECT_TRUE(server->WaitIdle());
}

INSTANTIATE_TEST_SUITE_P(
    Factors, SamenessTest,
    testing::Values(Factor{"Defaults", 1, {}}, Factor{"TwoWorkers", 2, {}}, Factor{"FourWorkers", 4, {"--threads=1"}},
                    Factor{"NoPrefixReuse", 1, {"--prefix_reuse=false"}}, Factor{"Chunk1", 1, {"--prefill_chunk=1"}},
                    Factor{"Chunk7", 1, {"--prefill_chunk=7"}}, Factor{"Chunk512", 1, {"--prefill_chunk=512"}},
                    Factor{"Block1", 1, {"--block_size=1"}}, Factor{"PreemptEveryStep", 1, {"--preempt_every_step"}},
                    Factor{"OneInFlight", 1, {"--max_in_flight=1"}},
                    Factor{"TwoWorkersPreemptChunk7", 2, {"--preempt_every_step", "--prefill_chunk=7"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The reference itself depends on its prompts, or the comparisons above would say nothing.
TEST(SamenessReferenceTest, PromptsGiveDifferentTokens) {
  std::set<std::vector<int32_t>> different(Reference().begin(), Reference().end());
  EXPECT_EQ(different.size(), Prompts().size());
}

}  // namespace
}  // namespace switchyard
