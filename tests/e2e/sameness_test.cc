// Greedy output does not depend on workers, other requests, prefix reuse, chunks, block sizes or preemption.
//
// Everything is compared with one worker, the defaults, no prefix reuse, and one request at a time: each factor alone,
// then a dozen seeded combinations; with --full all 72 combinations.  The model is tiny: a server starts in a tenth of
// a second.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

constexpr char kLongropeModel[] = "tests/golden/models/olmoe-longrope";
constexpr int kTokens = 24;
bool full = false;

// Lengths on both sides of blocks (16) and chunks (7, 512); two that share a prefix of 40.
std::vector<v1::GenerateRequest> Prompts() {
  std::vector<v1::GenerateRequest> requests;
  for (int length : {1, 7, 15, 16, 17, 33, 64, 150, 511, 512, 513}) {
    requests.push_back(IdsRequest(RandomIds(length, 256, static_cast<uint64_t>(length)), kTokens));
  }
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

// The same prompts, asking which experts they went to.
std::vector<v1::GenerateRequest> PathPrompts() {
  std::vector<v1::GenerateRequest> requests = Prompts();
  for (v1::GenerateRequest& request : requests) request.set_return_expert_paths(true);
  return requests;
}

// Returns the paths [tokens - 1, L, K] of each stream.
std::vector<std::string> PathsOf(const std::vector<StreamSeen>& seen) {
  std::vector<std::string> out;
  for (const StreamSeen& one : seen) {
    EXPECT_TRUE(one.ok()) << one.end << " " << one.fault;
    if (!one.ok()) return out;
    const StreamSeen::Choice& choice = one.choices[0];
    const v1::Usage& usage = choice.finish.usage();
    EXPECT_EQ(choice.paths.first_position(), 0);
    EXPECT_EQ(usage.cached_tokens(), 0);
    EXPECT_EQ(choice.paths.experts().size(),
              2u * static_cast<size_t>(usage.prompt_tokens() + usage.completion_tokens() - 1) *
                  static_cast<size_t>(choice.paths.num_moe_layers() * choice.paths.top_k()));
    out.push_back(choice.paths.experts());
  }
  return out;
}

const std::vector<std::string>& ReferencePaths() {
  static const auto* const kReference = [] {
    auto* out = new std::vector<std::string>();
    const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--prefix_reuse=false"}});
    if (server == nullptr) return out;
    for (const v1::GenerateRequest& request : PathPrompts()) {
      const std::vector<std::string> paths = PathsOf({Generate(server->client(), request)});
      if (!paths.empty()) out->push_back(paths[0]);
    }
    return out;
  }();
  return *kReference;
}

const Tokens& Reference() {
  static const Tokens* const kReference = [] {
    auto* out = new Tokens();
    const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--prefix_reuse=false"}});
    if (server == nullptr) return out;
    for (const v1::GenerateRequest& request : Prompts()) {
      out->push_back(TokensOf({Generate(server->client(), request)})[0]);
    }
    return out;
  }();
  return *kReference;
}

struct Factors {
  int workers = 1;
  bool prefix_reuse = true;
  int prefill_chunk = 0;
  int block_size = 16;
  bool preempt_every_step = false;
  int max_in_flight = 2;
  int min_rebalance_rows = 4;
  std::string expert_budget = {};
};

std::string Name(const Factors& f) {
  return absl::StrCat(f.workers, "workers", f.prefix_reuse ? "" : "_noreuse",
                      f.prefill_chunk > 0 ? absl::StrCat("_chunk", f.prefill_chunk) : "", "_block", f.block_size,
                      f.preempt_every_step ? "_preempt" : "", f.max_in_flight == 1 ? "_oneinflight" : "",
                      f.min_rebalance_rows == 0 ? "_noloans" : "",
                      f.expert_budget.empty() ? "" : absl::StrCat("_budget", f.expert_budget));
}

std::vector<Factors> EachAlone() {
  return {{},
          {.workers = 2},
          {.workers = 4},
          {.prefix_reuse = false},
          {.prefill_chunk = 1},
          {.prefill_chunk = 7},
          {.prefill_chunk = 512},
          {.block_size = 1},
          {.preempt_every_step = true},
          {.max_in_flight = 1},
          {.workers = 2, .min_rebalance_rows = 0},
          {.workers = 4, .min_rebalance_rows = 1},
          {.expert_budget = "30%"},
          {.workers = 2, .preempt_every_step = true, .expert_budget = "50%"}};
}

std::vector<Factors> AllCombinations() {
  std::vector<Factors> out;
  for (int workers : {1, 2, 4}) {
    for (bool reuse : {true, false}) {
      for (int chunk : {1, 7, 512}) {
        for (int block : {1, 16}) {
          for (bool preempt : {false, true}) out.push_back({workers, reuse, chunk, block, preempt, 2});
        }
      }
    }
  }
  return out;
}

void ExpectReference(const Factors& factors) {
  SCOPED_TRACE(Name(factors));
  ASSERT_EQ(Reference().size(), Prompts().size());
  std::vector<std::string> flags = {
      "--threads=1",
      absl::StrCat("--prefix_reuse=", factors.prefix_reuse ? "true" : "false"),
      absl::StrCat("--prefill_chunk=", factors.prefill_chunk),
      absl::StrCat("--block_size=", factors.block_size),
      absl::StrCat("--preempt_every_step=", factors.preempt_every_step ? "true" : "false"),
      absl::StrCat("--max_in_flight=", factors.max_in_flight),
      absl::StrCat("--min_rebalance_rows=", factors.min_rebalance_rows),
      absl::StrCat("--expert_memory=", factors.expert_budget)};
  if (!factors.expert_budget.empty()) {
    flags.push_back(absl::StrCat("--expert_file_dir=", testing::TempDir(), "/sameness-experts"));
  }
  const auto server = TestServer::Start({.model = kTinyModel, .workers = factors.workers, .flags = std::move(flags)});
  ASSERT_NE(server, nullptr);
  // All at once, then 32 at once (with cached prefixes, if they are on).
  EXPECT_EQ(TokensOf(GenerateAll(server->client(), Prompts())), Reference());
  std::vector<v1::GenerateRequest> many;
  Tokens expected;
  for (size_t i = 0; i < 32; ++i) {
    many.push_back(Prompts()[i % Prompts().size()]);
    expected.push_back(Reference()[i % Prompts().size()]);
  }
  EXPECT_EQ(TokensOf(GenerateAll(server->client(), many)), expected);
  // With cached prefixes, which requests for paths must not use; beside other requests, whose rows may be cached or
  // computed by another worker.
  const std::vector<StreamSeen> asked = GenerateAll(server->client(), PathPrompts());
  EXPECT_EQ(TokensOf(asked), Reference());
  EXPECT_EQ(PathsOf(asked), ReferencePaths());
  EXPECT_TRUE(server->WaitIdle());
}

// For a longrope model, whose keys differ for prompts of more than 64 tokens: prefixes of one text on both sides of
// that length; some decode beyond it.
std::vector<v1::GenerateRequest> LongropePrompts() {
  std::vector<v1::GenerateRequest> requests;
  const std::vector<int32_t> text = RandomIds(150, 256, 7);
  for (int length : {16, 33, 48, 60, 63, 64, 65, 66, 80, 100, 150}) {
    requests.push_back(IdsRequest({text.begin(), text.begin() + length}, kTokens));
  }
  return requests;
}

TEST(SamenessTest, LongropesTwoKindsOfKeysAreNeverMixed) {
  const std::vector<v1::GenerateRequest> prompts = LongropePrompts();
  Tokens expected;
  {
    const auto server = TestServer::Start({.model = kLongropeModel, .workers = 1, .flags = {"--prefix_reuse=false"}});
    ASSERT_NE(server, nullptr);
    for (const v1::GenerateRequest& prompt : prompts) {
      expected.push_back(TokensOf({Generate(server->client(), prompt)})[0]);
    }
  }
  {
    // One after the other, with reuse: the cached blocks of short prompts are reused by short prompts, not by long
    // ones.
    const auto server = TestServer::Start({.model = kLongropeModel, .workers = 1, .flags = {}});
    ASSERT_NE(server, nullptr);
    const std::vector<int32_t> cached = {0, 16, 32, 48, 48, 48, 0, 64, 64, 80, 96};
    for (size_t i = 0; i < prompts.size(); ++i) {
      const StreamSeen seen = Generate(server->client(), prompts[i]);
      EXPECT_EQ(TokensOf({seen})[0], expected[i]) << i;
      EXPECT_EQ(seen.choices[0].finish.usage().cached_tokens(), cached[i]) << i;
    }
  }
  for (const char* flag : {"--prefill_chunk=7", "--preempt_every_step=true", "--block_size=1"}) {
    const auto server = TestServer::Start({.model = kLongropeModel, .workers = 2, .flags = {"--threads=1", flag}});
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(TokensOf(GenerateAll(server->client(), prompts)), expected) << flag;
    EXPECT_EQ(TokensOf(GenerateAll(server->client(), prompts)), expected) << flag << ", again";
  }
}

// --combine=added has roundings of its own, which depend on the number of workers alone.
TEST(SamenessTest, AddedOutputsKeepTheirBits) {
  // The log probabilities of a prompt's tokens, which have more bits than choices.
  v1::GenerateRequest probe = IdsRequest(RandomIds(150, 256, 3), 1);
  probe.set_prompt_logprobs(2);
  const auto bits_of = [&](TestServer* server) {
    const StreamSeen seen = Generate(server->client(), probe);
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    std::vector<double> logprobs;
    for (const v1::PositionLogprobs& position : seen.prompt_logprobs) {
      for (const v1::TokenLogprob& token : position.top()) logprobs.push_back(token.logprob());
    }
    EXPECT_GT(logprobs.size(), 100U);
    return logprobs;
  };
  std::vector<std::vector<double>> bits;
  std::vector<Tokens> of_flags;
  for (const char* flag : {"--prefix_reuse=false", "--prefill_chunk=7", "--preempt_every_step=true",
                           "--micro_batches=3", "--min_rebalance_rows=1"}) {
    const auto server =
        TestServer::Start({.model = kTinyModel, .workers = 2, .flags = {"--threads=1", "--combine=added", flag}});
    ASSERT_NE(server, nullptr);
    const auto info = server->client().GetModelInfo();
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->combine(), "added by 2 workers");
    bits.push_back(bits_of(server.get()));
    EXPECT_EQ(bits.back(), bits.front()) << flag;
    of_flags.push_back(TokensOf(GenerateAll(server->client(), Prompts())));
    EXPECT_EQ(of_flags.back(), of_flags.front()) << flag;
  }
  const auto alone = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {"--combine=added"}});
  ASSERT_NE(alone, nullptr);
  EXPECT_EQ(alone->client().GetModelInfo()->combine(), "exact");
  EXPECT_NE(bits_of(alone.get()), bits.front()) << "two workers add what they have first";
  EXPECT_EQ(TokensOf(GenerateAll(alone->client(), Prompts())), Reference());
}

// The reference depends on its prompts, or the comparisons would say nothing.
TEST(SamenessTest, PromptsGiveDifferentTokens) {
  const std::set<std::vector<int32_t>> different(Reference().begin(), Reference().end());
  EXPECT_EQ(different.size(), Prompts().size());
}

TEST(SamenessTest, EachFactorAlone) {
  for (const Factors& factors : EachAlone()) ExpectReference(factors);
}

TEST(SamenessTest, Combinations) {
  std::vector<Factors> combinations = AllCombinations();
  if (!full) {
    std::shuffle(combinations.begin(), combinations.end(), std::mt19937(20));
    combinations.resize(12);
  }
  for (size_t i = 0; i < combinations.size(); ++i) {
    const absl::Time begin = absl::Now();
    ExpectReference(combinations[i]);
    std::cout << "combination " << i + 1 << " of " << combinations.size() << ": " << Name(combinations[i]) << ", "
              << absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))) << std::endl;
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) switchyard::full = switchyard::full || std::strcmp(argv[i], "--full") == 0;
  return RUN_ALL_TESTS();
}
