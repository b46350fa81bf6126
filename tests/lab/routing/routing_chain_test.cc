#include "tests/lab/routing/routing_chain.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

RoutingChain Tuned(const RoutingChainOptions& options) {
  absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned(options);
  EXPECT_TRUE(chain.ok()) << chain.status();
  return *std::move(chain);
}

popularity::RoutingView All(const popularity::RoutingTrace& trace) {
  return popularity::ViewOf(trace, trace.sequences[0], 0, trace.sequences[0].num_tokens());
}

// As one sequence of all the tokens, whatever their domain.
popularity::RoutingTrace Joined(popularity::RoutingTrace trace) {
  popularity::TraceSequence all;
  for (const popularity::TraceSequence& sequence : trace.sequences) {
    all.token_ids.insert(all.token_ids.end(), sequence.token_ids.begin(), sequence.token_ids.end());
    all.experts.insert(all.experts.end(), sequence.experts.begin(), sequence.experts.end());
  }
  trace.sequences = {all};
  return trace;
}

// By counting, as the paper did.
double DrawnSkew(const popularity::RoutingView& batch) {
  double sum = 0;
  for (int layer = 0; layer < batch.shape.num_layers; ++layer) {
    const std::vector<int64_t> counts = popularity::CountsOf(batch, layer);
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    sum += static_cast<double>(*most) / static_cast<double>(*least);
  }
  return sum / batch.shape.num_layers;
}

double DrawnPattern(const popularity::RoutingView& batch, int k) {
  const auto experts = static_cast<size_t>(batch.shape.num_experts);
  double found = 0;
  for (int layer = 0; layer + 1 < batch.shape.num_layers; ++layer) {
    std::vector<std::vector<int64_t>> groups(experts, std::vector<int64_t>(experts));
    for (int64_t t = 0; t < batch.num_tokens; ++t)
      ++groups[static_cast<size_t>(batch.Experts(t, layer)[0])][static_cast<size_t>(batch.Experts(t, layer + 1)[0])];
    for (std::vector<int64_t>& group : groups) {
      std::sort(group.begin(), group.end(), std::greater<>());
      found += static_cast<double>(std::accumulate(group.begin(), group.begin() + k, int64_t{0}));
    }
  }
  return found / static_cast<double>(batch.num_tokens * (batch.shape.num_layers - 1));
}

TEST(RoutingChainTest, WhatIsDrawnHasThePapersSkewAndPattern) {
  const RoutingChain chain = Tuned({});
  EXPECT_NEAR(chain.Skew(), 5.56, 0.001);
  EXPECT_NEAR(chain.Pattern(1), 0.4194, 0.0001);
  EXPECT_NEAR(chain.Pattern(2), 0.5459, 0.0001);
  const popularity::RoutingTrace trace =
      Joined(chain.Draw({.num_sequences = 4000, .sequence_tokens = 40, .domain_run = 1}));
  EXPECT_NEAR(DrawnSkew(All(trace)), 5.56, 0.25);
  EXPECT_NEAR(DrawnPattern(All(trace), 1), 0.4194, 0.005);
  EXPECT_NEAR(DrawnPattern(All(trace), 2), 0.5459, 0.005);
}

TEST(RoutingChainTest, FourExpertsHaveTheirSkewAndTheFirstPattern) {
  RoutingChainOptions options{.shape = {.num_layers = 12, .num_experts = 4, .top_k = 1}, .skew = 4.02};
  EXPECT_THAT(RoutingChain::Tuned(options).status().message(), HasSubstr("pattern_2 0.5459 cannot be reached"));
  options.pattern_2 = 0;
  const RoutingChain chain = Tuned(options);
  const popularity::RoutingTrace trace =
      Joined(chain.Draw({.num_sequences = 4000, .sequence_tokens = 40, .domain_run = 1}));
  EXPECT_NEAR(DrawnSkew(All(trace)), 4.02, 0.15);
  EXPECT_NEAR(DrawnPattern(All(trace), 1), 0.4194, 0.005);
}

TEST(RoutingChainTest, ChoicesOfATokenDifferAndTheSeedDecides) {
  const RoutingChain chain =
      Tuned({.shape = {.num_layers = 4, .num_experts = 8, .top_k = 3}, .skew = 3, .pattern_2 = 0});
  const popularity::RoutingTrace trace = chain.Draw({.num_sequences = 2, .sequence_tokens = 100});
  const popularity::RoutingView batch = All(trace);
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    for (int layer = 0; layer < 4; ++layer) {
      const absl::Span<const int16_t> chosen = batch.Experts(t, layer);
      EXPECT_TRUE(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2]);
    }
  }
  EXPECT_EQ(chain.Draw({.num_sequences = 2, .sequence_tokens = 100}).sequences[1].experts, trace.sequences[1].experts);
  EXPECT_NE(chain.Draw({.num_sequences = 2, .sequence_tokens = 100, .seed = 2}).sequences[1].experts,
            trace.sequences[1].experts);
}

// Mean loss of what came under Bayes' distribution, and the loss that he expects: they agree for the true one.
struct Loss {
  double came = 0, expected = 0;
};

Loss LossOf(const RoutingChain& chain, const popularity::RoutingView& batch, int layer) {
  Loss loss;
  std::vector<double> next(static_cast<size_t>(batch.shape.num_experts));
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    chain.NextDistribution(batch, t, layer, absl::MakeSpan(next));
    EXPECT_NEAR(std::accumulate(next.begin(), next.end(), 0.0), 1, 1e-9);
    loss.came -= std::log(next[static_cast<size_t>(batch.Experts(t, layer)[0])]);
    for (const double share : next) loss.expected -= share * std::log(share);
  }
  loss.came /= static_cast<double>(batch.num_tokens);
  loss.expected /= static_cast<double>(batch.num_tokens);
  return loss;
}

TEST(RoutingChainTest, NextDistributionIsCalibratedAndLearnsFromTheWholePath) {
  const RoutingChain chain = Tuned({});
  const popularity::RoutingTrace trace =
      Joined(chain.Draw({.num_sequences = 1000, .sequence_tokens = 40, .domain_run = 1}));
  const popularity::RoutingView batch = All(trace);
  const Loss first = LossOf(chain, batch, 0), third = LossOf(chain, batch, 3), last = LossOf(chain, batch, 11);
  for (const Loss& loss : {first, third, last}) EXPECT_NEAR(loss.came, loss.expected, 0.02);
  EXPECT_LT(third.came, 0.8 * first.came);
  EXPECT_LT(last.came, 0.9 * third.came);
}

// Two layers ahead is one layer ahead, over all choices that may come between.
TEST(RoutingChainTest, SecondNextDistributionIsTheMeanOverWhatComesBetween) {
  const RoutingChain chain = Tuned({});
  popularity::RoutingTrace trace = Joined(chain.Draw({.num_sequences = 2, .sequence_tokens = 8, .domain_run = 1}));
  std::vector<int16_t>& experts = trace.sequences[0].experts;
  const auto width = static_cast<size_t>(trace.shape.num_experts);
  std::vector<double> between(width), after(width), second(width);
  for (const int layer : {1, 2, 7}) {
    const popularity::RoutingView batch = All(trace);
    for (int64_t t = 0; t < batch.num_tokens; ++t) {
      chain.SecondNextDistribution(batch, t, layer, absl::MakeSpan(second));
      chain.NextDistribution(batch, t, layer - 1, absl::MakeSpan(between));
      int16_t& came = experts[static_cast<size_t>(t * trace.shape.num_layers + layer - 1)];
      const int16_t kept = came;
      std::vector<double> mean(width, 0.0);
      for (size_t via = 0; via < width; ++via) {
        came = static_cast<int16_t>(via);
        chain.NextDistribution(batch, t, layer, absl::MakeSpan(after));
        for (size_t e = 0; e < width; ++e) mean[e] += between[via] * after[e];
      }
      came = kept;
      for (size_t e = 0; e < width; ++e) EXPECT_NEAR(second[e], mean[e], 1e-9);
    }
  }
}

TEST(RoutingChainTest, WhatCannotBeIsRefused) {
  EXPECT_THAT(RoutingChain::Tuned({.shape = {.num_layers = 4, .num_experts = 5, .top_k = 1}}).status().message(),
              HasSubstr("num_experts is 5, must be even"));
  EXPECT_THAT(RoutingChain::Tuned({.moved_share = 1.5}).status().message(), HasSubstr("moved_share is 1.5"));
  EXPECT_THAT(RoutingChain::Tuned({.pattern_2 = 0.3}).status().message(), HasSubstr("pattern_2 is 0.3"));
  EXPECT_THAT(RoutingChain::Tuned({.pattern_1 = 0.01, .pattern_2 = 0}).status().message(),
              HasSubstr("pattern_1 0.01 cannot"));
}

}  // namespace
}  // namespace switchyard
