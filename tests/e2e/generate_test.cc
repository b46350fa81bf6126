// Generate, as a client sees it: streams, sampling, stops, log probabilities, choices.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kPrompt[] = "In the beginning";

class GenerateTest : public SharedServerTest {
 protected:
  StreamSeen Run(const v1::GenerateRequest& request) {
    StreamSeen seen = Generate(*client_, request);
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    if (seen.choices.empty()) seen.choices.resize(1);
    return seen;
  }
};

TEST_F(GenerateTest, TextStreamsTokensUsageAndTimings) {
  const StreamSeen seen = Run(TextRequest(kPrompt, 24));
  const StreamSeen::Choice& choice = seen.choices[0];
  EXPECT_EQ(choice.token_ids.size(), 24u);
  EXPECT_FALSE(choice.text.empty());
  EXPECT_TRUE(choice.finished);
  EXPECT_EQ(choice.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(choice.finish.usage().completion_tokens(), 24);
  EXPECT_GT(choice.finish.usage().prompt_tokens(), 0);
  EXPECT_GE(choice.finish.timings().queue_seconds(), 0);
  EXPECT_GT(choice.finish.timings().prefill_seconds(), 0);
  EXPECT_GT(choice.finish.timings().decode_seconds(), 0);
  EXPECT_EQ(seen.model, "demo-model");
  EXPECT_FALSE(seen.request_id.empty());
}

TEST_F(GenerateTest, TextAndItsTokensGiveTheSame) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(kPrompt);
  const auto tokens = client_->Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const StreamSeen by_ids = Run(IdsRequest({tokens->token_ids().begin(), tokens->token_ids().end()}, 16));
  const StreamSeen by_text = Run(TextRequest(kPrompt, 16));
  EXPECT_EQ(by_ids.choices[0].token_ids, by_text.choices[0].token_ids);
  EXPECT_EQ(by_ids.choices[0].text, by_text.choices[0].text);
}

// The streamed text is the text of the tokens, though a character may need several of them.
TEST_F(GenerateTest, StreamedTextIsTheTokensText) {
  const StreamSeen seen = Run(TextRequest("naïve café, 日本", 64));
  v1::DetokenizeRequest detokenize;
  detokenize.mutable_token_ids()->Assign(seen.choices[0].token_ids.begin(), seen.choices[0].token_ids.end());
  const auto text = client_->Detokenize(detokenize);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(seen.choices[0].text, text->text());
}

TEST_F(GenerateTest, ContextIsTheLimitWhenMaxTokensIsUnset) {
  const auto info = client_->GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  std::vector<int32_t> ids = RandomIds(info->max_model_len() - 5, info->vocab_size(), 1);
  v1::GenerateRequest request = IdsRequest(ids, 1);
  request.clear_max_tokens();
  EXPECT_EQ(Run(request).choices[0].token_ids.size(), 5u);
  ids.resize(static_cast<size_t>(info->max_model_len()) - 1, 7);
  EXPECT_EQ(Run(IdsRequest(ids, 1)).choices[0].token_ids.size(), 1u);
}

TEST_F(GenerateTest, SameSeedSameTextInAnyCompany) {
  v1::GenerateRequest request = TextRequest(kPrompt, 32);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(42);
  const StreamSeen alone = Run(request);
  EXPECT_EQ(alone.seed, 42u);
  std::vector<v1::GenerateRequest> many(12, request);
  for (size_t i = 1; i < many.size(); i += 2) many[i].mutable_sampling()->set_seed(1000 + i);
  const std::vector<StreamSeen> together = GenerateAll(*client_, many);
  std::set<std::vector<int32_t>> others;
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_TRUE(together[i].ok()) << together[i].end;
    if (i % 2 == 0) {
      EXPECT_EQ(together[i].choices[0].token_ids, alone.choices[0].token_ids) << i;
    }
    if (i % 2 == 1) others.insert(together[i].choices[0].token_ids);
  }
  EXPECT_GT(others.size(), 1u);
}

TEST_F(GenerateTest, ADrawnSeedIsReturnedAndRepeats) {
  v1::GenerateRequest request = TextRequest(kPrompt, 16);
  request.mutable_sampling()->set_temperature(1);
  const StreamSeen first = Run(request);
  const StreamSeen other = Run(request);
  EXPECT_NE(first.seed, other.seed);
  request.mutable_sampling()->set_seed(first.seed);
  EXPECT_EQ(Run(request).choices[0].token_ids, first.choices[0].token_ids);
}

TEST_F(GenerateTest, Choices) {
  v1::GenerateRequest request = TextRequest(kPrompt, 12);
  request.set_n(4);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(5);
  const StreamSeen seen = Run(request);
  ASSERT_EQ(seen.choices.size(), 4u);
  std::set<std::vector<int32_t>> different;
  for (const StreamSeen::Choice& choice : seen.choices) {
    EXPECT_TRUE(choice.finished);
    EXPECT_EQ(choice.token_ids.size(), 12u);
    different.insert(choice.token_ids);
  }
  EXPECT_GT(different.size(), 1u);
  const StreamSeen again = Run(request);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(again.choices[i].token_ids, seen.choices[i].token_ids);
}

TEST_F(GenerateTest, AStopStringEndsTheOutputAndIsNotInIt) {
  const StreamSeen whole = Run(TextRequest(kPrompt, 24));
  const std::string& text = whole.choices[0].text;
  ASSERT_GT(text.size(), 12u);
  std::string stop = text.substr(text.size() / 2, 3);
  if (absl::StrContains(text, "\xc3")) GTEST_SKIP() << "the demo text has a character of several bytes here";
  v1::GenerateRequest request = TextRequest(kPrompt, 24);
  request.add_stop("never in the text \x01");
  request.add_stop(stop);
  const StreamSeen seen = Run(request);
  EXPECT_EQ(seen.choices[0].text, text.substr(0, text.find(stop)));
  EXPECT_EQ(seen.choices[0].finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(seen.choices[0].finish.stop_string(), stop);
}

TEST_F(GenerateTest, AStopTokenEndsTheOutputButNotBeforeMinTokens) {
  const std::vector<int32_t> ids = Run(TextRequest(kPrompt, 24)).choices[0].token_ids;
  v1::GenerateRequest request = TextRequest(kPrompt, 24);
  request.add_stop_token_ids(ids[6]);
  const size_t first = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[6]) - ids.begin());
  const StreamSeen seen = Run(request);
  EXPECT_EQ(seen.choices[0].finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(seen.choices[0].finish.stop_token_id(), ids[6]);
  EXPECT_GE(seen.choices[0].token_ids.size(), first);
  EXPECT_LE(seen.choices[0].token_ids.size(), first + 1);
  request.set_min_tokens(20);
  EXPECT_GE(Run(request).choices[0].token_ids.size(), 20u);
}

TEST_F(GenerateTest, LogprobsOfOutputAndPrompt) {
  v1::GenerateRequest request = TextRequest(kPrompt, 8);
  request.set_logprobs(3);
  request.set_prompt_logprobs(2);
  const StreamSeen seen = Run(request);
  const StreamSeen::Choice& choice = seen.choices[0];
  ASSERT_EQ(choice.logprobs.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const v1::PositionLogprobs& position = choice.logprobs[i];
    EXPECT_EQ(position.chosen().token_id(), choice.token_ids[i]);
    EXPECT_EQ(position.chosen().rank(), 1) << "greedy takes the likeliest";
    ASSERT_EQ(position.top_size(), 3);
    EXPECT_EQ(position.top(0).token_id(), choice.token_ids[i]);
    EXPECT_EQ(position.top(0).logprob(), position.chosen().logprob());
    EXPECT_GE(position.top(0).logprob(), position.top(1).logprob());
    EXPECT_LE(position.chosen().logprob(), 0);
    EXPECT_TRUE(std::isfinite(position.top(2).logprob()));
  }
  EXPECT_EQ(seen.prompt_logprobs.size(), static_cast<size_t>(choice.finish.usage().prompt_tokens() - 1));
  for (const v1::PositionLogprobs& position : seen.prompt_logprobs) {
    EXPECT_EQ(position.top_size(), 2);
    EXPECT_GE(position.chosen().rank(), 1);
    EXPECT_LE(position.chosen().logprob(), 0);
  }
  EXPECT_EQ(choice.finish.usage().cached_tokens(), 0) << "prompt_logprobs bypass prefix reuse";
}

// A generated text, sent as a prompt, has the same log probabilities as when it was generated.
TEST_F(GenerateTest, PromptLogprobsAgreeWithLogprobs) {
  v1::GenerateRequest request = IdsRequest(RandomIds(20, 4000, 3), 10);
  request.set_logprobs(0);
  const StreamSeen seen = Run(request);
  std::vector<int32_t> ids = RandomIds(20, 4000, 3);
  ids.insert(ids.end(), seen.choices[0].token_ids.begin(), seen.choices[0].token_ids.end());
  v1::GenerateRequest scored = IdsRequest(ids, 1);
  scored.set_prompt_logprobs(0);
  const StreamSeen score = Run(scored);
  ASSERT_EQ(score.prompt_logprobs.size(), 29u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(score.prompt_logprobs[19 + i].chosen().logprob(), seen.choices[0].logprobs[i].chosen().logprob()) << i;
  }
}

TEST_F(GenerateTest, LogitBiasAndPenaltiesSteer) {
  v1::GenerateRequest request = TextRequest(kPrompt, 6);
  (*request.mutable_sampling()->mutable_logit_bias())[77] = 1000;
  EXPECT_THAT(Run(request).choices[0].token_ids, testing::Each(77));
  request.mutable_sampling()->mutable_logit_bias()->clear();
  const int32_t likeliest = Run(request).choices[0].token_ids[0];
  (*request.mutable_sampling()->mutable_logit_bias())[likeliest] = -1000;
  EXPECT_NE(Run(request).choices[0].token_ids[0], likeliest);
  request.mutable_sampling()->mutable_logit_bias()->clear();
  (*request.mutable_sampling()->mutable_logit_bias())[77] = 1;
  request.set_max_tokens(64);
  const auto repeats = [](const std::vector<int32_t>& ids) {
    return ids.size() - std::set<int32_t>(ids.begin(), ids.end()).size();
  };
  const size_t plain = repeats(Run(request).choices[0].token_ids);
  request.mutable_sampling()->set_frequency_penalty(2);
  request.mutable_sampling()->set_presence_penalty(2);
  request.mutable_sampling()->set_repetition_penalty(2);
  EXPECT_LT(repeats(Run(request).choices[0].token_ids), plain);
}

TEST_F(GenerateTest, TopKOfOneIsGreedy) {
  const StreamSeen greedy = Run(TextRequest(kPrompt, 16));
  v1::GenerateRequest request = TextRequest(kPrompt, 16);
  request.mutable_sampling()->set_temperature(2);
  request.mutable_sampling()->set_top_k(1);
  EXPECT_EQ(Run(request).choices[0].token_ids, greedy.choices[0].token_ids);
}

TEST_F(GenerateTest, ARepeatedPromptUsesItsCachedPrefix) {
  const std::vector<int32_t> ids = RandomIds(200, 4000, 11);
  const StreamSeen first = Run(IdsRequest(ids, 8));
  const StreamSeen second = Run(IdsRequest(ids, 8));
  EXPECT_EQ(first.choices[0].finish.usage().cached_tokens(), 0);
  EXPECT_GE(second.choices[0].finish.usage().cached_tokens(), 176);
  EXPECT_EQ(first.choices[0].token_ids, second.choices[0].token_ids);
}

TEST_F(GenerateTest, MessagesAreRenderedByTheServer) {
  const auto info = client_->GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  v1::GenerateRequest request = TextRequest("", 8);
  v1::ChatMessage* message = request.mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content("Hello");
  if (!info->has_chat_template()) {
    const StreamSeen seen = Generate(*client_, request);
    EXPECT_EQ(client::Describe(seen.end).reason, "NO_CHAT_TEMPLATE");
    return;
  }
  v1::TokenizeRequest tokenize;
  *tokenize.mutable_messages() = request.messages();
  const auto tokens = client_->Tokenize(tokenize);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->rendered_text(), HasSubstr("Hello"));
  EXPECT_EQ(Run(request).choices[0].token_ids,
            Run(IdsRequest({tokens->token_ids().begin(), tokens->token_ids().end()}, 8)).choices[0].token_ids);
}

}  // namespace
}  // namespace switchyard
