#include "workers/ops/sampling/sampling.h"

#include "tests/reference/sampling.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kVocabulary = 50;

class SamplingTest : public OpTest {
 protected:
  SampleOutcome SampleOne(const TensorView& logits, const batching::SamplingParams& params,
                          const TokenHistory& history) {
    const SampleRequest request = {.params = &params, .history = &history};
    SampleOutcome outcome;
    EXPECT_TRUE(SampleTokens(stream(), logits, {request}, absl::MakeSpan(&outcome, 1)).ok());
    return outcome;
  }
};

struct FilterCase {
  const char* name;
  batching::SamplingParams params;
};

std::vector<FilterCase> FilterCases() {
  std::vector<FilterCase> cases = {{"plain", {}}};
  const auto add = [&](const char* name, auto set) {
    cases.push_back({name, {}});
    set(cases.back().params);
  };
  add("hot", [](batching::SamplingParams& p) { p.temperature = 1.7; });
  add("cold", [](batching::SamplingParams& p) { p.temperature = 0.3; });
  add("top_k", [](batching::SamplingParams& p) { p.top_k = 7; });
  add("top_k_1", [](batching::SamplingParams& p) { p.top_k = 1; });
  add("top_k_beyond", [](batching::SamplingParams& p) { p.top_k = 1000; });
  add("top_p", [](batching::SamplingParams& p) { p.top_p = 0.8; });
  add("top_p_tiny", [](batching::SamplingParams& p) { p.top_p = 1e-6; });
  add("min_p", [](batching::SamplingParams& p) { p.min_p = 0.1; });
  add("all_filters",
      [](batching::SamplingParams& p) { p.temperature = 1.3, p.top_k = 20, p.top_p = 0.9, p.min_p = 0.05; });
  add("penalties", [](batching::SamplingParams& p) {
    p.repetition_penalty = 1.5, p.presence_penalty = 0.5, p.frequency_penalty = 0.7;
  });
  add("bias", [](batching::SamplingParams& p) { p.logit_bias = {{3, 5.0f}, {4, -100.0f}, {77, 1.0f}}; });
  add("min_tokens", [](batching::SamplingParams& p) { p.min_tokens = 5, p.stop_ids = {0, 1, 2}; });
  return cases;
}

// Chi-square of 4000 draws with fixed seeds against the reference's distribution, for every combination of filters.
TEST_P(SamplingTest, DrawsFollowTheReferenceDistribution) {
  const Tensor logits = RandomMatrix(dtype(), 1, kVocabulary, 11, 2.0);
  const std::vector<int32_t> prompt = {1, 2, 3, 3}, output = {5, 6, 5};
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), output.begin(), output.end());
  TokenHistory history;
  history.Reset(tokens, static_cast<int64_t>(prompt.size()));
  ASSERT_EQ(history.num_output(), 3);
  for (FilterCase filter : FilterCases()) {
    batching::SamplingParams in_range = filter.params;
    std::erase_if(in_range.logit_bias, [](const auto& bias) { return bias.first >= kVocabulary; });
    const std::vector<double> want = reference::SamplingDistribution(RowOf(logits, 0), in_range, prompt, output);
    constexpr int kDraws = 4000;
    std::vector<int> count(kVocabulary);
    for (int i = 0; i < kDraws; ++i) {
      filter.params.seed = 1000 + i;
      ++count[SampleOne(logits, filter.params, history).token];
    }
    double chi_square = 0, rest_want = 0;
    int degrees = -1, rest_count = 0;
    for (int64_t t = 0; t < kVocabulary; ++t) {
      if (want[t] == 0) {
        ASSERT_EQ(count[t], 0) << filter.name << " token " << t;
      }
      if (want[t] * kDraws < 5) {  // too few for the test: taken together
        rest_want += want[t] * kDraws, rest_count += count[t];
        continue;
      }
      chi_square += std::pow(count[t] - want[t] * kDraws, 2) / (want[t] * kDraws);
      ++degrees;
    }
    if (rest_want >= 5) chi_square += std::pow(rest_count - rest_want, 2) / rest_want, ++degrees;
    // Mean + 4 standard deviations: passes for a right sampler, and the seeds are fixed.
    EXPECT_LE(chi_square, degrees + 4 * std::sqrt(2.0 * std::max(degrees, 1))) << filter.name;
  }
}

TEST_P(SamplingTest, GreedyTakesTheLargestAndTheSmallerIdOfEquals) {
  const Tensor logits(dtype(), {1, 5});
  for (int64_t c = 0; c < 5; ++c) Set(logits, 0, c, c == 2 || c == 4 ? 3.0 : 1.0);
  batching::SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(SampleOne(logits, params, {}).token, 2);
  params.logit_bias = {{4, 0.5f}};
  EXPECT_EQ(SampleOne(logits, params, {}).token, 4);
  params.stop_ids = {4}, params.min_tokens = 1;
  EXPECT_EQ(SampleOne(logits, params, {}).token, 2);
}

TEST_P(SamplingTest, TopPWithALongNucleusKeepsExactlyIt) {
  // 5000 equal logits: the nucleus of 0.5 is the 2500 smallest ids, far beyond the first prefix that is looked at.
  const Tensor logits = Tensor::Zeros(dtype(), {1, 5000});
  batching::SamplingParams params;
  params.top_p = 0.5;
  int32_t largest = 0;
  for (int i = 0; i < 400; ++i) {
    params.seed = i;
    largest = std::max(largest, SampleOne(logits, params, {}).token);
  }
  EXPECT_LT(largest, 2500);
  EXPECT_GT(largest, 2400);
}

TEST_P(SamplingTest, LogprobsAreThoseOfTheRawDistribution) {
  const Tensor logits = RandomMatrix(dtype(), 1, kVocabulary, 12, 3.0);
  const std::vector<double> want = reference::LogSoftmax(RowOf(logits, 0));
  batching::SamplingParams params;
  params.temperature = 0.2, params.top_k = 3, params.num_logprobs = 4, params.logit_bias = {{7, 100.0f}};
  const SampleOutcome outcome = SampleOne(logits, params, {});
  EXPECT_EQ(outcome.token, 7);
  const auto expect_entry = [&](const batching::TokenLogprob& entry) {
    EXPECT_NEAR(entry.logprob, want[entry.token], 1e-5);
    EXPECT_EQ(entry.rank, 1 + std::count_if(want.begin(), want.end(), [&](double w) { return w > want[entry.token]; }));
  };
  expect_entry(outcome.logprobs.chosen);
  EXPECT_EQ(outcome.logprobs.chosen.token, 7);
  ASSERT_EQ(outcome.logprobs.top.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    expect_entry(outcome.logprobs.top[i]);
    EXPECT_EQ(outcome.logprobs.top[i].rank, i + 1);
  }
  std::vector<batching::PositionLogprobs> given(1);
  ASSERT_TRUE(TokenLogprobs(stream(), logits, {{.token = 9, .num_top = 0}}, absl::MakeSpan(given), {}).ok());
  expect_entry(given[0].chosen);
  EXPECT_TRUE(given[0].top.empty());
}

TEST_P(SamplingTest, BrokenRowsAreReportedAndLeaveOthersAlone) {
  const Tensor logits = RandomMatrix(dtype(), 5, kVocabulary, 13);
  Set(logits, 1, 49, std::nan("")), Set(logits, 2, 0, INFINITY), Set(logits, 4, 3, -INFINITY);
  for (int64_t c = 0; c < kVocabulary; ++c) Set(logits, 3, c, -INFINITY);
  const batching::SamplingParams params;
  const TokenHistory history;
  std::vector<SampleRequest> requests(5, {.params = &params, .history = &history});
  std::vector<SampleOutcome> outcomes(5);
  ASSERT_TRUE(SampleTokens(stream(), logits, requests, absl::MakeSpan(outcomes)).ok());
  for (int i : {0, 4}) EXPECT_EQ(outcomes[i].status, batching::ItemStatus::kOk) << i;
  for (int i : {1, 2, 3}) {
    EXPECT_EQ(outcomes[i].status, batching::ItemStatus::kNonFinite) << i;
    EXPECT_EQ(outcomes[i].token, -1);
  }
  std::vector<batching::PositionLogprobs> logprobs(5);
  std::vector<batching::ItemStatus> statuses(5);
  ASSERT_TRUE(TokenLogprobs(stream(), logits, std::vector<LogprobRequest>(5), absl::MakeSpan(logprobs),
                            absl::MakeSpan(statuses))
                  .ok());
  EXPECT_EQ(statuses[1], batching::ItemStatus::kNonFinite);
  EXPECT_EQ(statuses[4], batching::ItemStatus::kOk);
}

// Legal, if absurd: the largest numbers there are, and no fault of the model's.
TEST_P(SamplingTest, TinyPenaltiesAndHugeBiasesOverflowNothing) {
  Tensor row(dtype(), {1, kVocabulary});
  for (int64_t t = 0; t < kVocabulary; ++t) Set(row, 0, t, -1.0 - 0.01 * static_cast<double>(t));
  Set(row, 0, 7, 3.0), Set(row, 0, 8, 0.0), Set(row, 0, 9, -std::numeric_limits<double>::infinity());
  TokenHistory history;
  history.Reset({7, 8, 9, 10}, 2);
  for (double penalty : {1e-3, 1e-40, 1e-300, 5e-324}) {
    batching::SamplingParams params;
    params.temperature = 0, params.repetition_penalty = penalty;
    SampleOutcome outcome = SampleOne(row, params, history);
    EXPECT_EQ(outcome.status, batching::ItemStatus::kOk) << penalty;
    EXPECT_EQ(outcome.token, 7) << penalty;
    params.logit_bias = {{7, std::numeric_limits<float>::max()}};
    params.temperature = 1;
    outcome = SampleOne(row, params, history);
    EXPECT_EQ(outcome.status, batching::ItemStatus::kOk) << penalty;
    EXPECT_EQ(outcome.token, 7) << penalty;
  }
}

// Under a mask a row is one whose other logits are -Inf, in both forms of the mask; a row without finite ones is
// broken.
TEST_P(SamplingTest, AMaskForbidsTheOtherTokens) {
  const Tensor logits = RandomMatrix(dtype(), 1, kVocabulary, 5, 2.0);
  TokenHistory history;
  history.Reset(std::vector<int32_t>{1, 2}, 1);
  const std::vector<int32_t> ids = {0, 7, 9, 16, 17, 18, 19, 20, 21, 22, 23, 31, 48, 49};  // all of a byte of bits, too
  grammar::TokenMask list{.ids = ids, .bits = {}}, bits{.ids = {}, .bits = std::string((kVocabulary + 7) / 8, '\0')};
  for (const int32_t id : ids) bits.bits[id / 8] = static_cast<char>(bits.bits[id / 8] | (1 << (id % 8)));
  for (FilterCase filter : FilterCases()) {
    filter.params.logit_bias.emplace_back(12, 50.0f);  // does not bring back what the mask forbids
    for (int i = 0; i < 50; ++i) {
      filter.params.seed = i;
      SampleOutcome outcomes[2];
      const SampleRequest requests[] = {{.params = &filter.params, .history = &history, .mask = &list},
                                        {.params = &filter.params, .history = &history, .mask = &bits}};
      for (int k = 0; k < 2; ++k) {
        ASSERT_TRUE(SampleTokens(stream(), logits, {requests[k]}, absl::MakeSpan(&outcomes[k], 1)).ok());
        ASSERT_EQ(outcomes[k].status, batching::ItemStatus::kOk) << filter.name;
        ASSERT_TRUE(std::find(ids.begin(), ids.end(), outcomes[k].token) != ids.end()) << filter.name;
      }
      EXPECT_EQ(outcomes[0].token, outcomes[1].token) << filter.name;
    }
  }
}

TEST_P(SamplingTest, MinTokensGiveWayWhereAMaskAllowsStopTokensAlone) {
  const Tensor logits = RandomMatrix(dtype(), 1, kVocabulary, 5, 2.0);
  TokenHistory history;
  batching::SamplingParams params{.min_tokens = 5, .stop_ids = {7, 9}};
  const auto sample = [&](std::vector<int32_t> ids) {
    const grammar::TokenMask mask{.ids = std::move(ids), .bits = {}};
    SampleOutcome outcome;
    const SampleRequest request = {.params = &params, .history = &history, .mask = &mask};
    EXPECT_TRUE(SampleTokens(stream(), logits, {request}, absl::MakeSpan(&outcome, 1)).ok());
    return outcome;
  };
  EXPECT_EQ(sample({7}).status, batching::ItemStatus::kOk);
  EXPECT_EQ(sample({7}).token, 7);
  params.logit_bias = {{8, -1e4f}};
  EXPECT_EQ(sample({7, 8, 9}).token, 8) << "another one is left, however unlikely";
  EXPECT_EQ(sample({}).status, batching::ItemStatus::kNonFinite);
}

TEST_P(SamplingTest, RowsIgnoreCompany) {
  constexpr int64_t kRows = 64;
  const Tensor logits = RandomMatrix(dtype(), kRows, 1000, 14, 2.0);
  std::vector<batching::SamplingParams> params(kRows);
  std::vector<TokenHistory> histories(kRows);
  const std::vector<FilterCase> filters = FilterCases();
  for (int64_t i = 0; i < kRows; ++i) {
    params[i] = filters[i % filters.size()].params;
    params[i].seed = i, params[i].num_logprobs = 2;
    histories[i].Reset({1, 2, static_cast<int32_t>(i)}, 2);
  }
  ExpectRowsIgnoreCompany(kRows, [&](const Stream& stream, int64_t begin, int64_t count) {
    std::vector<SampleRequest> requests;
    for (int64_t i = begin; i < begin + count; ++i) {
      requests.push_back({.params = &params[i], .history = &histories[i]});
    }
    std::vector<SampleOutcome> outcomes(count);
    EXPECT_TRUE(SampleTokens(stream, logits.view().Rows(begin, count), requests, absl::MakeSpan(outcomes)).ok());
    Tensor out(DType::kF32, {count, 3});
    for (int64_t i = 0; i < count; ++i) {
      Set(out, i, 0, outcomes[i].token), Set(out, i, 1, outcomes[i].logprobs.chosen.logprob);
      Set(out, i, 2, outcomes[i].logprobs.top[1].logprob);
    }
    return out;
  });
}

TEST_P(SamplingTest, PreemptionDoesNotChangeTheHistory) {
  TokenHistory grown, rebuilt;
  grown.Reset({4, 5}, 2);
  for (int32_t t : {5, 6, 5}) grown.AppendOutput(t);
  rebuilt.Reset({4, 5, 5, 6, 5}, 2);
  EXPECT_EQ(grown.output_counts(), rebuilt.output_counts());
  EXPECT_EQ(grown.num_output(), rebuilt.num_output());
}

TEST_P(SamplingTest, NoRowsIsFineAndMisfitsAreNamed) {
  const Tensor none(dtype(), {0, 5}), one(dtype(), {1, 5});
  EXPECT_TRUE(SampleTokens(stream(), none, {}, {}).ok());
  EXPECT_FALSE(SampleTokens(stream(), one, {}, {}).ok());
  std::vector<batching::PositionLogprobs> logprobs(1);
  EXPECT_EQ(TokenLogprobs(stream(), one, {{.token = 5}}, absl::MakeSpan(logprobs), {}).message(),
            "logprobs: token 5 of row 0 is outside [0, 5)");
}

SY_INSTANTIATE_OP_TEST(SamplingTest, kAccDTypes);

}  // namespace
}  // namespace switchyard::ops
