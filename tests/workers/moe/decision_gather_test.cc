// The gather of a layer's counts and estimates at the limits of its 16 bits; impossible messages are refused.
#include "workers/moe/placement/decision_gather.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::moe {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

constexpr int kLayers = 4, kExperts = 5;

// Passes all on, but puts 16 bits of its own into what rank 0 sends in the first gather.
class TamperingCommunicator : public comm::Communicator {
 public:
  TamperingCommunicator(Communicator* inner, int64_t byte, uint16_t bits)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(inner), byte_(byte), bits_(bits) {}

  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override {
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, inner_->StartExchange(std::move(exchange)));
    return std::make_unique<TamperedWork>(std::move(work), byte_, bits_);
  }

 private:
  class TamperedWork : public comm::Work {
   public:
    TamperedWork(std::unique_ptr<Work> inner, int64_t byte, uint16_t bits)
        : inner_(std::move(inner)), byte_(byte), bits_(bits) {}
    absl::Status Wait() override {
      RETURN_IF_ERROR(inner_->Wait());
      received_ = std::move(inner_->received());
      std::memcpy(received_[0].payload() + byte_, &bits_, sizeof(bits_));
      return absl::OkStatus();
    }

   private:
    const std::unique_ptr<Work> inner_;
    const int64_t byte_;
    const uint16_t bits_;
  };

  Communicator* const inner_;
  const int64_t byte_;
  const uint16_t bits_;
};

// The input of one rank.
struct Sent {
  std::vector<int32_t> counts;                                         // [E] rows of its gate
  std::vector<std::pair<int, popularity::Popularity>> estimates = {};  // (layer, [E])
};

// The output of one rank.
struct Received {
  std::vector<int32_t> counts;  // [R, E]
  std::vector<std::pair<int, popularity::Popularity>> estimates;
  int64_t gathers = 0;
};

struct Reported {
  std::vector<absl::Status> statuses;  // [R]
  std::vector<Received> received;      // [R]
};

absl::Status ReportOf(const Sent& sent, bool estimates, comm::Communicator* comm, Received* received) {
  std::vector<int32_t> idx;
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    idx.insert(idx.end(), static_cast<size_t>(sent.counts[static_cast<size_t>(expert)]), expert);
  }
  std::vector<placement::LayerEstimate> reported;
  for (const auto& [layer, popularity] : sent.estimates) reported.push_back({layer, popularity});
  MoeStats stats;
  DecisionGather gather(kLayers, kExperts, estimates);
  const auto rows = static_cast<int64_t>(idx.size());
  const MoeContext context{.comm = comm, .deadline = test::Soon(), .stats = &stats};
  const LayerContext layer{
      .index = 2, .topk_on_host = TensorView(idx.data(), DType::kI32, {rows, 1}), .estimates = reported};
  ASSIGN_OR_RETURN(const DecisionGather::Reported result, gather.Gather(context, layer, placement::DecisionDigest()));
  received->counts.assign(result.counts.rows.begin(), result.counts.rows.end());
  for (const placement::LayerEstimate& estimate : result.estimates) {
    received->estimates.emplace_back(estimate.layer,
                                     popularity::Popularity(estimate.popularity.begin(), estimate.popularity.end()));
  }
  received->gathers = comm->ledger().num_launched();
  return absl::OkStatus();
}

Reported Report(const std::vector<Sent>& all_sent, bool estimates = true) {
  Reported reported;
  reported.received.resize(all_sent.size());
  auto ranks = test::MakeGroup(test::Backend::kLocal, static_cast<int>(all_sent.size()));
  reported.statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    return ReportOf(all_sent[rank], estimates, comm, &reported.received[rank]);
  });
  return reported;
}

TEST(DecisionGatherTest, CountsAreExactOnBothSidesOf16Bits) {
  for (const int32_t most : {65534, 65535, 65536, 70000}) {
    for (const size_t world : {1, 3, 7}) {
      std::vector<Sent> all_sent(world, {.counts = {0, 1, 2, 3, 4}});
      all_sent.back().counts = {7, 0, most, 0, 1};
      std::vector<int32_t> expected;
      for (const Sent& sent : all_sent) expected.insert(expected.end(), sent.counts.begin(), sent.counts.end());
      const Reported reported = Report(all_sent);
      for (size_t rank = 0; rank < world; ++rank) {
        ASSERT_TRUE(reported.statuses[rank].ok()) << reported.statuses[rank];
        EXPECT_THAT(reported.received[rank].counts, ElementsAreArray(expected)) << most << " on " << world;
        // Sent again where one rank's do not fit, by all ranks.
        const int64_t gathers = most > 65535 ? 2 : 1;
        EXPECT_EQ(reported.received[rank].gathers, world == 1 ? 0 : gathers);
      }
    }
  }
}

TEST(DecisionGatherTest, EstimatesThatFitAreExact) {
  const popularity::Popularity one = {65535, 0, 1, 2, 3}, other = {1, 1, 1, 1, 65535};
  const Reported reported = Report({{.counts = {0, 0, 0, 0, 0}, .estimates = {{3, one}, {1, one}}},
                                    {.counts = {1, 0, 0, 0, 0}, .estimates = {{3, other}}},
                                    {.counts = {0, 0, 0, 0, 1}, .estimates = {{0, other}}}});
  for (const Received& received : reported.received) {
    // Behind layer 2: 3, then 0 of the next step; of a rank's estimates the first.
    EXPECT_THAT(received.estimates, ElementsAre(std::make_pair(3, popularity::Popularity{65536, 1, 2, 3, 65538}),
                                                std::make_pair(0, other)));
  }
}

// All ranks receive the same, below what was expected by less than a 2^15th of the rank's largest.
TEST(DecisionGatherTest, LargerEstimatesLoseNoMoreThanTheyMay) {
  for (const int64_t largest : {int64_t{65536}, 300 * popularity::kRow + 12345, int64_t{1} << 48}) {
    const popularity::Popularity expected = {largest, largest / 3, popularity::kRow / 7, 1, 0};
    const Reported reported =
        Report({{.counts = {0, 0, 0, 0, 0}, .estimates = {{1, expected}}}, {.counts = {1, 0, 0, 0, 0}}});
    for (const Received& received : reported.received) {
      ASSERT_EQ(received.estimates.size(), 1u) << largest;
      EXPECT_EQ(received.estimates[0], reported.received[0].estimates[0]);
      for (size_t e = 0; e < expected.size(); ++e) {
        EXPECT_LE(received.estimates[0].second[e], expected[e]);
        EXPECT_LT(expected[e] - received.estimates[0].second[e], largest >> 15) << largest << ", expert " << e;
      }
    }
  }
}

TEST(DecisionGatherTest, MessagesAreShort) {
  EXPECT_EQ(DecisionGather(8, 16, true).message_bytes(), 14 + 4 * 16);
  EXPECT_EQ(DecisionGather(8, 16, false).message_bytes(), 10 + 2 * 16);
}

TEST(DecisionGatherTest, WithoutEstimatesNoneAreReported) {
  const Reported reported =
      Report({{.counts = {1, 2, 3, 4, 5}, .estimates = {{1, popularity::Popularity(kExperts, 9)}}},
              {.counts = {5, 4, 3, 2, 1}}},
             /*estimates=*/false);
  for (const Received& received : reported.received) {
    EXPECT_TRUE(received.estimates.empty());
    EXPECT_THAT(received.counts, ElementsAre(1, 2, 3, 4, 5, 5, 4, 3, 2, 1));
  }
}

// (hash, wide, layer, shift, …)
TEST(DecisionGatherTest, WhatNoRankCanHaveReportedEndsTheGroup) {
  struct Tampering {
    int64_t byte;
    uint16_t bits;
    const char* text;
  };
  for (const Tampering& tampering : {Tampering{10, kLayers, "rank 0 expects something of layer 4 of 4, times 2^0"},
                                     Tampering{10, 0xfffe, "rank 0 expects something of layer -2 of 4"},
                                     Tampering{12, 34, "rank 0 expects something of layer 1 of 4, times 2^34"}}) {
    const Sent sent{.counts = {1, 0, 0, 0, 0}, .estimates = {{1, popularity::Popularity(kExperts, 7)}}};
    std::vector<Received> received(2);
    auto ranks = test::MakeGroup(test::Backend::kLocal, 2);
    const std::vector<absl::Status> statuses = test::RunRanks(&ranks, [&](comm::Communicator* comm) {
      if (comm->rank() == 0) return ReportOf(sent, true, comm, &received[0]);
      TamperingCommunicator tampered(comm, tampering.byte, tampering.bits);
      return ReportOf(sent, true, &tampered, &received[1]);
    });
    EXPECT_TRUE(absl::IsInternal(statuses[1])) << statuses[1];
    EXPECT_THAT(statuses[1].message(), HasSubstr(tampering.text));
    EXPECT_FALSE(ranks[1]->status().ok());
  }
}

TEST(DecisionGatherTest, WhatNoRankMayExpectIsRefused) {
  for (const auto& [popularity, text] :
       {std::make_pair(popularity::Popularity{1, -2, 0, 0, 0}, "expects -2 / "),
        std::make_pair(popularity::Popularity{1, (int64_t{1} << 48) + 1, 0, 0, 0}, "expects 281474976710657 / "),
        std::make_pair(popularity::Popularity{1, 2, 3}, "has 3 experts of 5")}) {
    const Reported reported = Report({{.counts = {0, 0, 0, 0, 0}, .estimates = {{1, popularity}}}});
    EXPECT_TRUE(absl::IsInternal(reported.statuses[0])) << reported.statuses[0];
    EXPECT_THAT(reported.statuses[0].message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace switchyard::moe
