// A placement's table over an expert budget, by hand: what the policy receives, that rows find their experts whatever
// was copied, and the life of a migration.
#include "workers/moe/placement/cached_expert_host.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "scheduler/placement/placement.h"
#include "scheduler/popularity/popularity.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/fake_copier.h"
#include "tests/workers/moe/moe_test_model.h"

namespace switchyard::moe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLayers = 2, kExperts = 8;

// LRU, which records its calls.
class RecordingPolicy final : public offload::CachePolicy {
 public:
  RecordingPolicy(const offload::OffloadShape& shape, absl::Span<const int64_t> popularity,
                  std::vector<std::string>* reported)
      : lru_(shape, false, popularity), reported_(reported) {
    std::string wanted;
    for (const int64_t rows : popularity) absl::StrAppend(&wanted, rows / popularity::kRow);
    reported_->push_back("wants " + wanted);
  }
  absl::string_view name() const override { return "recording"; }
  std::vector<offload::ExpertKey> InitialSlots() const override { return lru_.InitialSlots(); }
  offload::LayerPlan OnGate(const offload::LayerNeed& need,
                            absl::Span<const offload::LayerForecast> forecasts) override {
    return lru_.OnGate(need, forecasts);
  }
  void Host(offload::ExpertKey key, bool here) override {
    reported_->push_back(absl::StrCat(here ? "+" : "-", key / kExperts, ".", key % kExperts));
    lru_.Host(key, here);
  }
  void Prefer(offload::ExpertKey key, bool in_memory) override {
    reported_->push_back(absl::StrCat(in_memory ? "!" : "?", key / kExperts, ".", key % kExperts));
  }

 private:
  offload::LruPolicy lru_;
  std::vector<std::string>* const reported_;
};

class CachedExpertHostTest : public testing::Test {
 protected:
  void Make(int num_slots) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      packed_.push_back(test::MoeTestModel(test::MoeShape{}, layer + 1).PackExperts());
    }
    ExpertStoreOptions store_options;
    store_options.expert = test::MoeTestModel(test::MoeShape{}).packed();
    bytes_ = store_options.expert.bytes;
    store_options.num_slots = num_slots;
    store_options.chunk_bytes = bytes_ / 4;
    store_options.source = [this](const ExpertId& id) { return Bytes(id.layer, id.expert); };
    auto store = ExpertStore::Create(store_options, std::make_unique<test::FakeCopier>(&copies_));
    ASSERT_TRUE(store.ok()) << store.status();
    ExpertOffloadOptions options;
    options.num_layers = kLayers;
    options.experts.resize(kExperts);
    std::iota(options.experts.begin(), options.experts.end(), 0);
    options.make_policy = [this](const offload::OffloadShape& shape, absl::Span<const int64_t> popularity) {
      return std::make_unique<RecordingPolicy>(shape, popularity, &reported_);
    };
    auto offload = ExpertOffload::Create(std::move(options), *std::move(store));
    ASSERT_TRUE(offload.ok()) << offload.status();
    offload_ = *std::move(offload);
    slots_ = std::make_unique<CachedExpertHost>(offload_.get());
  }
  const char* Bytes(int layer, int expert) const {
    return packed_[static_cast<size_t>(layer)].data() + expert * bytes_;
  }
  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts) {
    return slots_->Fill(experts, test::Soon(), [](int64_t, int64_t) { return true; });
  }
  // A row for each of these slots' experts, in both layers; how many were computed with their own weights.
  absl::StatusOr<int> Run(const std::vector<std::vector<int32_t>>& experts) {
    int computed = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<int32_t>& slots = experts[static_cast<size_t>(layer)];
      std::vector<int32_t> offsets = {0};
      for (const int32_t expert : slots) offsets.push_back(offsets.back() + (expert == placement::kEmptySlot ? 0 : 1));
      const absl::Status status = offload_->RunLayer(
          {.deadline = test::Soon()}, {.index = layer}, {.experts = slots, .offsets = offsets},
          [&](const ops::WeightGroup& gate_up, const ops::WeightGroup&) {
            for (int64_t slot = 0; slot < gate_up.size(); ++slot) {
              if (gate_up[slot] == nullptr) continue;
              const char* const bytes = Bytes(layer, slots[static_cast<size_t>(slot)]);
              EXPECT_EQ(std::memcmp(gate_up[slot]->data(), bytes, static_cast<size_t>(gate_up[slot]->bytes())), 0);
              ++computed;
            }
            return absl::OkStatus();
          });
      if (!status.ok()) return status;
    }
    return computed;
  }
  std::vector<std::string> Reported() { return std::exchange(reported_, {}); }

  std::vector<std::vector<char>> packed_;
  int64_t bytes_ = 0;
  test::CopyScript copies_;
  std::vector<std::string> reported_;
  std::unique_ptr<ExpertOffload> offload_;  // its store's thread uses the script
  std::unique_ptr<CachedExpertHost> slots_;
};

TEST_F(CachedExpertHostTest, FillsWithWhatThePlacementHasHere) {
  Make(3);
  ASSERT_TRUE(Fill({{0, 1, placement::kEmptySlot}, {2, 3, 4}}).ok());
  EXPECT_EQ(Reported(), (std::vector<std::string>{"wants 1100000000111000", "-0.2", "-0.3", "-0.4", "-0.5", "-0.6",
                                                  "-0.7", "-1.0", "-1.1", "-1.5", "-1.6", "-1.7"}));
  EXPECT_EQ(*Run({{1, placement::kEmptySlot, 0}, {4, 3, 2}}), 5);
  EXPECT_THAT(Run({{5}, {}}).status().message(),
              HasSubstr("1 rows of MoE layer 0 came for slot 0, whose expert, 5, is not here"));
  // Experts that the background balancer wants in memory come first.
  std::vector<std::vector<bool>> in_memory(kLayers, std::vector<bool>(kExperts));
  in_memory[1][3] = in_memory[1][7] = true;
  slots_->BeginWith(in_memory);
  Reported();
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  // 1: it may get rows; 2 more: it is here already; 4 more: the background balancer wants it.
  EXPECT_EQ(Reported().front(), "wants 1100000000370000");
  EXPECT_EQ(offload_->store().StateOf({1, 3}), SlotState::kFilled);
  EXPECT_EQ(offload_->store().StateOf({1, 7}), SlotState::kFree) << "it is another rank's";
}

// Experts that are there stay, in whichever slots the new policy counts them; those no longer wanted make room.
TEST_F(CachedExpertHostTest, AGroupCopiesWhatIsMissingAndNoMore) {
  Make(5);
  ASSERT_TRUE(Fill({{0, 1, 5}, {2, 3, 4}}).ok());
  // 0.1 and 0.5 go for 1.3 and 1.4.
  EXPECT_EQ(*Run({{0}, {2, 3, 4}}), 4);
  const auto copies = [this] { return offload_->store().counters().copied_bytes / bytes_; };
  const int64_t before = copies();
  ASSERT_TRUE(Fill({{0, 1, 5}, {2, 3, 4}}).ok());
  EXPECT_EQ(copies(), before);
  EXPECT_EQ(offload_->store().StateOf({1, 4}), SlotState::kFilled) << "what traffic brought is not given up";
  EXPECT_EQ(*Run({{0, 1, 5}, {2, 3, 4}}), 6);
  // One that is here, and one that is not; no rows come for any other.
  const int64_t again = copies();
  ASSERT_TRUE(Fill({{7}, {4}}).ok());
  EXPECT_EQ(copies(), again + 1);
  int filled = 0;
  for (const ExpertStore::SlotView& slot : offload_->store().Slots()) filled += slot.state == SlotState::kFilled;
  EXPECT_EQ(filled, 2) << "nobody needs the others";
  EXPECT_EQ(*Run({{7}, {4}}), 2);
  EXPECT_EQ(copies(), again + 1);
}

TEST_F(CachedExpertHostTest, ACopyThatFailsWhileFillingIsSaidAndNotTakenForThere) {
  Make(3);
  copies_.FailAt({1, 2}, bytes_ / 2, absl::DataLossError("page is gone"));
  EXPECT_EQ(Fill({{0, 1}, {2}}).message(), "page is gone");
  copies_.Heal();
  const int64_t before = offload_->store().counters().copied_bytes;
  ASSERT_TRUE(Fill({{0, 1}, {2}}).ok());
  EXPECT_EQ(offload_->store().counters().copied_bytes - before, bytes_) << "the two others are here";
  EXPECT_EQ(*Run({{0, 1}, {2}}), 3);
}

TEST_F(CachedExpertHostTest, ADecisionChangesWhatRowsMayComeForAndCopiesNothing) {
  Make(3);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  Reported();
  const int64_t copied = offload_->store().counters().copied_bytes;
  ASSERT_TRUE(slots_->Replace(0, 1, 6, CopyReason::kDemand).ok());
  EXPECT_THAT(Reported(), ElementsAre("-0.1", "+0.6"));
  EXPECT_EQ(offload_->store().counters().copied_bytes, copied);
  EXPECT_EQ(*Run({{0, 6}, {2, 3}}), 4);
  EXPECT_FALSE(Run({{1}, {}}).ok());
}

TEST_F(CachedExpertHostTest, FillCanBeStopped) {
  Make(3);
  copies_.Hold();
  const absl::Status stopped =
      slots_->Fill({{0, 1}, {2, 3}}, test::Soon(), [](int64_t done, int64_t total) { return done > total; });
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  copies_.AllowAll();
  EXPECT_EQ(*Run({{0, 1}, {2, 3}}), 4);
}

TEST_F(CachedExpertHostTest, AMigrationIsReadyAtOnceAndStaysUntilItsRelease) {
  Make(3);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  Reported();
  ASSERT_TRUE(slots_->Prepare({{{1, 6}}}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(slots_->Prepare({{{1, 7}}})));
  EXPECT_TRUE(*slots_->Ready());
  slots_->Commit({{{1, 2}}});
  EXPECT_THAT(Reported(), ElementsAre("+1.6"));
  EXPECT_EQ(*Run({{0, 1}, {3, 6, 2}}), 5) << "2 until the release";
  EXPECT_TRUE(absl::IsFailedPrecondition(slots_->Prepare({{{1, 7}}})));
  ASSERT_TRUE(slots_->Release().ok());
  EXPECT_THAT(Reported(), ElementsAre("-1.2"));
  EXPECT_FALSE(Run({{0}, {2}}).ok());
}

// The per-step balancer has what a migration brings, drops it before the commit, and brings back what departs.
TEST_F(CachedExpertHostTest, WhatTwoHoldIsReportedOnce) {
  Make(3);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  Reported();
  ASSERT_TRUE(slots_->Prepare({{{1, 3}}}).ok());
  ASSERT_TRUE(slots_->Replace(1, 3, 5, CopyReason::kPrefetch).ok());
  slots_->Commit({{{1, 2}}});
  ASSERT_TRUE(slots_->Replace(1, 5, 2, CopyReason::kPrefetch).ok());
  ASSERT_TRUE(slots_->Release().ok());
  EXPECT_THAT(Reported(), ElementsAre("+1.5", "-1.5"));
  EXPECT_EQ(*Run({{0, 1}, {3, 2}}), 4);
  ASSERT_TRUE(slots_->Prepare({{{0, 7}}}).ok());
  ASSERT_TRUE(slots_->Drop().ok());
  EXPECT_THAT(Reported(), ElementsAre("+0.7", "-0.7"));
}

TEST_F(CachedExpertHostTest, AfterAnErrorThePolicyBeginsWithThePlacementOfNow) {
  Make(3);
  ASSERT_TRUE(Fill({{0, 1}, {2, 3}}).ok());
  Reported();
  slots_->Prefer({1, 2}, true);
  slots_->Prefer({1, 3}, true);
  slots_->Prefer({1, 3}, false);
  EXPECT_THAT(Reported(), ElementsAre("!1.2", "!1.3", "?1.3"));
  ASSERT_TRUE(slots_->Replace(0, 1, 6, CopyReason::kDemand).ok());
  copies_.FailAt({0, 6}, 0, absl::DataLossError("page is gone"));
  EXPECT_FALSE(Run({{0, 6}, {2, 3}}).ok());
  copies_.Heal();
  Reported();
  EXPECT_EQ(*Run({{0, 6}, {2, 3}}), 4);
  EXPECT_EQ(Reported().front(), "wants 3000001000710000");
}

}  // namespace
}  // namespace switchyard::moe
