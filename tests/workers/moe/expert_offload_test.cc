// One rank's experts in fewer slots, driven by hand: what its policy is told, what starts and micro-batches copy, and
// what happens when a copy fails.
#include "workers/moe/experts/expert_offload.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/offload/policies/lru_policy.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/workers/moe/moe_run.h"
#include "tests/workers/moe/named_policy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

using test::MakePolicy;
using test::PolicyOf;
using testing::HasSubstr;

class ExpertOffloadFaultTest : public testing::Test {
 protected:
  void Make(int num_slots, MakePolicy policy = PolicyOf("lru")) {
    MakeEmpty(num_slots, std::move(policy));
    const absl::Status filled = Fill();
    ASSERT_TRUE(filled.ok()) << filled;
  }
  absl::Status Fill() {
    return offload_->Fill(test::Soon(), [](int64_t, int64_t) { return true; });
  }
  // Null: lru, whose slots begin with what a start wants most.
  void MakeEmpty(int num_slots, MakePolicy policy = nullptr) {
    experts_ = model_.PackExperts();
    ExpertStoreOptions options;
    options.expert = model_.packed();
    options.num_slots = num_slots;
    options.source = [this](const ExpertId& id) { return experts_.data() + id.expert * model_.packed().bytes; };
    auto store = ExpertStore::Create(options, std::make_unique<test::FakeCopier>(&copies_));
    ASSERT_TRUE(store.ok());
    ExpertOffloadOptions offload;
    offload.num_layers = 2;
    offload.measured_gates = measured_gates_;
    offload.experts = {0, 1, 2, 3, 4, 5, 6, 7};
    offload.make_policy = [policy = std::move(policy)](const offload::OffloadShape& shape,
                                                       absl::Span<const int64_t> worth) {
      return policy != nullptr ? policy(shape) : std::make_unique<offload::LruPolicy>(shape, false, worth);
    };
    auto made = ExpertOffload::Create(offload, *std::move(store));
    ASSERT_TRUE(made.ok()) << made.status();
    offload_ = *std::move(made);
  }
  std::vector<placement::LayerEstimate> estimates_;  // given to the next layer
  int measured_gates_ = 0;

  // Which experts were computed, one string a wave.
  absl::StatusOr<std::vector<std::string>> Run(int layer, const std::vector<int>& rows,
                                               absl::Time deadline = test::Soon()) {
    return RunPart({.index = layer, .estimates = estimates_}, rows, {}, deadline);
  }
  absl::StatusOr<std::vector<std::string>> RunPart(const LayerContext& layer, const std::vector<int>& rows,
                                                   absl::Span<const int32_t> later = {},
                                                   absl::Time deadline = absl::InfiniteFuture()) {
    std::vector<int32_t> offsets = {0};
    for (const int count : rows) offsets.push_back(offsets.back() + count);
    std::vector<std::string> waves;
    const ExpertRows sorted = {.experts = offload_->experts(), .offsets = offsets, .later = later};
    const auto compute = [&](const ops::WeightGroup& gate_up, const ops::WeightGroup& down) {
      waves.emplace_back();
      for (int64_t e = 0; e < gate_up.size(); ++e) {
        EXPECT_EQ(gate_up[e] == nullptr, down[e] == nullptr);
        if (gate_up[e] == nullptr) continue;
        absl::StrAppend(&waves.back(), e);
        const char* const expert = experts_.data() + e * model_.packed().bytes;
        EXPECT_EQ(std::memcmp(gate_up[e]->data(), expert, static_cast<size_t>(gate_up[e]->bytes())), 0);
        EXPECT_EQ(
            std::memcmp(down[e]->data(), expert + model_.packed().down_offset, static_cast<size_t>(down[e]->bytes())),
            0);
      }
      return compute_status_;
    };
    RETURN_IF_ERROR(offload_->RunLayer({.deadline = deadline}, layer, sorted, compute));
    return waves;
  }
  static std::string Sorted(const std::vector<std::string>& waves) {
    std::string all;
    for (const std::string& wave : waves) all += wave;
    std::sort(all.begin(), all.end());
    return all;
  }

  const test::MoeTestModel model_{test::MoeShape{}};
  std::vector<char> experts_;
  test::CopyScript copies_;
  absl::Status compute_status_;
  std::unique_ptr<ExpertOffload> offload_;  // last: its store's thread uses the script
};

TEST_F(ExpertOffloadFaultTest, EachExpertWithRowsComputesOnce) {
  Make(5);
  for (int pass = 0; pass < 3; ++pass) {
    const auto first = Run(0, {1, 0, 2, 3, 0, 1, 1, 9});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(Sorted(*first), "023567");
    const auto second = Run(1, {0, 0, 0, 0, 0, 0, 0, 0});
    ASSERT_TRUE(second.ok());
    EXPECT_TRUE(second->empty());
  }
}

// A policy that is never asked for more than LRU, and records its calls.
class RecordingPolicy final : public offload::CachePolicy {
 public:
  RecordingPolicy(const offload::OffloadShape& shape, std::vector<std::string>* reported)
      : lru_(PolicyOf("lru")(shape)), reported_(reported) {}
  absl::string_view name() const override { return "recording"; }
  std::vector<offload::ExpertKey> InitialSlots() const override { return lru_->InitialSlots(); }
  offload::LayerPlan OnGate(const offload::LayerNeed& need,
                            absl::Span<const offload::LayerForecast> forecasts) override {
    if (ticks != nullptr) ticks->push_back(need.compute_ticks);
    std::string text;
    for (const offload::LayerForecast& forecast : forecasts) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", forecast.ahead, ":");
      for (const int32_t chance : forecast.chance)
        absl::StrAppend(&text, chance > offload::kChance / 2 ? " likely" : " not");
    }
    reported_->push_back(text);
    return lru_->OnGate(need, forecasts);
  }
  offload::LayerPlan OnPass(absl::Span<const offload::LayerForecast> forecasts, int64_t ticks) override {
    std::string text = absl::StrCat("pass ", ticks);
    for (const offload::LayerForecast& forecast : forecasts) {
      absl::StrAppend(&text, " ", forecast.ahead, ":");
      for (size_t e = 0; e < forecast.chance.size(); ++e)
        if (forecast.chance[e] > offload::kChance / 2) absl::StrAppend(&text, e);
    }
    reported_->push_back(text);
    return {{{offload::PlanStep::kDrop, 0, 0}, {offload::PlanStep::kPrefetch, 7, 0}}};
  }

  std::vector<int64_t>* ticks = nullptr;  // of each gate

 private:
  std::unique_ptr<CachePolicy> lru_;
  std::vector<std::string>* reported_;
};

TEST_F(ExpertOffloadFaultTest, ThePolicyReceivesWhatIsExpectedOfThisRanksExperts) {
  std::vector<std::string> reported;
  Make(6, [&](const offload::OffloadShape& shape) { return std::make_unique<RecordingPolicy>(shape, &reported); });
  const std::vector<int64_t> one = {9 * popularity::kRow, 0, 0, 0, 0, 0, 0, 0},
                             last = {0, 0, 0, 0, 0, 0, 0, 9 * popularity::kRow};
  estimates_ = {{.layer = 1, .popularity = one}};
  ASSERT_TRUE(Run(0, {1, 0, 0, 0, 0, 0, 0, 0}).ok());
  // Layer 0 of the next pass, as there are two.
  estimates_ = {{.layer = 0, .popularity = last}};
  ASSERT_TRUE(Run(1, {1, 0, 0, 0, 0, 0, 0, 0}).ok());
  estimates_ = {};
  ASSERT_TRUE(Run(0, {1, 0, 0, 0, 0, 0, 0, 0}).ok());
  EXPECT_EQ(reported, (std::vector<std::string>{"1: likely not not not not not not not",
                                                "1: not not not not not not not likely", ""}));
}

// The copy of what a step's tokens want of layer 0 begins before that layer's gate.
TEST_F(ExpertOffloadFaultTest, ThePolicyReceivesOfAPassBeforeItsFirstGate) {
  std::vector<std::string> reported;
  Make(4, [&](const offload::OffloadShape& shape) { return std::make_unique<RecordingPolicy>(shape, &reported); });
  const std::vector<int64_t> last = {0, 0, 0, 0, 0, 0, 0, 9 * popularity::kRow},
                             first = {9 * popularity::kRow, 0, 0, 0, 0, 0, 0, 0};
  ASSERT_EQ(offload_->store().StateOf({0, 7}), SlotState::kFree);
  ASSERT_TRUE(offload_->BeginPass({{{.layer = 0, .popularity = last}, {.layer = 1, .popularity = first}}}).ok());
  EXPECT_EQ(reported, std::vector<std::string>{"pass 0 1:7 2:0"});
  EXPECT_NE(offload_->store().StateOf({0, 7}), SlotState::kFree);
  EXPECT_EQ(offload_->store().StateOf({0, 0}), SlotState::kFree);
  // (The policy knows nothing of what it said, as this one is LRU: which then copies 7 anew.)
  reported.clear();
  // A pass that ends early is followed by a start, whose policy knows no pass.
  ASSERT_TRUE(Run(0, {0, 1, 0, 0, 0, 0, 0, 0}).ok());
  reported.clear();
  ASSERT_TRUE(offload_->BeginPass({{{.layer = 0, .popularity = last}}}).ok());
  EXPECT_TRUE(reported.empty());
}

class ExpertOffloadTicksTest : public ExpertOffloadFaultTest {
 protected:
  // Three gates with few rows are measured, one with many; the policy records what it is given.
  void MakeMeasuring(std::vector<std::string>* reported, std::vector<int64_t>* ticks) {
    measured_gates_ = 3;
    Make(6, [=](const offload::OffloadShape& shape) {
      auto policy = std::make_unique<RecordingPolicy>(shape, reported);
      policy->ticks = ticks;
      return policy;
    });
  }
};

// What a layer takes beside its experts is measured at first, and a constant from then on.
TEST_F(ExpertOffloadTicksTest, ThePolicyReceivesWhatLayersTakeBesideTheirExperts) {
  std::vector<std::string> reported;
  std::vector<int64_t> ticks;
  MakeMeasuring(&reported, &ticks);
  for (int pass = 0; pass < 8; ++pass) {
    for (const int layer : {0, 1}) ASSERT_TRUE(Run(layer, {2, 0, 1, 0, 0, 0, 0, 0}).ok());
  }
  ASSERT_EQ(ticks.size(), 16u);
  // Two experts and three rows; the third gate that follows another one is that of the third pass' second layer.
  EXPECT_EQ(std::vector<int64_t>(ticks.begin(), ticks.begin() + 5), std::vector<int64_t>(5, 5));
  EXPECT_GT(ticks[5], 5);
  EXPECT_EQ(std::vector<int64_t>(ticks.begin() + 5, ticks.end()), std::vector<int64_t>(11, ticks[5]));
}

// Experts that rows have brought into slots stay there.
TEST_F(ExpertOffloadFaultTest, AStartCopiesWhatIsMissingAndNoMore) {
  MakeEmpty(5);
  ASSERT_TRUE(Fill().ok());
  ASSERT_TRUE(Run(0, {1, 1, 1, 1, 1, 1, 0, 0}).ok());
  ASSERT_TRUE(Run(1, {0, 0, 0, 1, 0, 0, 0, 0}).ok());
  const int64_t before = offload_->store().counters().copied_bytes;
  ASSERT_TRUE(Fill().ok());
  EXPECT_EQ(offload_->store().counters().copied_bytes, before);
  EXPECT_EQ(offload_->store().StateOf({1, 3}), SlotState::kFilled);
  EXPECT_EQ(Sorted(*Run(0, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
}

TEST_F(ExpertOffloadFaultTest, ACopyThatFailsWhileFillingIsSaidAndNotTakenForThere) {
  MakeEmpty(3);
  copies_.FailAt({0, 2}, 0, absl::DataLossError("page is gone"));
  EXPECT_EQ(Fill().message(), "page is gone");
  copies_.Heal();
  const int64_t before = offload_->store().counters().copied_bytes;
  ASSERT_TRUE(Fill().ok());
  EXPECT_EQ(offload_->store().counters().copied_bytes - before, model_.packed().bytes) << "the two others are here";
}

TEST_F(ExpertOffloadFaultTest, FillCanBeStopped) {
  MakeEmpty(3);
  copies_.Hold();
  const absl::Status stopped = offload_->Fill(test::Soon(), [](int64_t done, int64_t total) { return done > total; });
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  copies_.AllowAll();
  EXPECT_EQ(Sorted(*Run(0, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
}

// Of many rows it goes by the rows of the layer that took the time.
TEST_F(ExpertOffloadTicksTest, WhatLayersTakeBesideTheirExpertsGrowsWithAPromptsRows) {
  std::vector<std::string> reported;
  std::vector<int64_t> ticks;
  MakeMeasuring(&reported, &ticks);
  // The one gate that is measured follows a layer of 4000 rows; its own has 600.
  const std::vector<int> many = {3000, 0, 1000, 0, 0, 0, 0, 0}, fewer = {400, 0, 200, 0, 0, 0, 0, 0};
  ASSERT_TRUE(Run(0, many).ok());
  ASSERT_TRUE(Run(1, fewer).ok());
  ASSERT_TRUE(Run(0, many).ok());
  ASSERT_TRUE(Run(1, fewer).ok());
  ASSERT_EQ(ticks.size(), 4u);
  EXPECT_EQ(ticks[0], 2 + 4000);
  const int64_t of_many = ticks[2] - (2 + 4000), of_fewer = ticks[1] - (2 + 600);
  EXPECT_GT(of_fewer, 0);
  EXPECT_EQ(ticks[3], ticks[1]);
  EXPECT_NEAR(static_cast<double>(of_many), static_cast<double>(of_fewer) * 4000 / 600, 7);
}

TEST_F(ExpertOffloadFaultTest, AFailedCopyEndsThePassAndTheNextBeginsAnew) {
  Make(4);
  copies_.FailAt({0, 7}, 0, absl::DataLossError("page is gone"));
  EXPECT_TRUE(absl::IsDataLoss(Run(0, {1, 1, 1, 1, 1, 1, 1, 1}).status()));
  copies_.Heal();
  const auto again = Run(0, {1, 1, 1, 1, 1, 1, 1, 1});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Sorted(*again), "01234567");
  compute_status_ = absl::UnavailableError("the group is gone");
  EXPECT_EQ(Run(1, {1, 1, 1, 1, 1, 1, 1, 1}).status(), compute_status_);
  compute_status_ = absl::OkStatus();
  EXPECT_EQ(Sorted(*Run(0, {0, 0, 0, 0, 0, 0, 0, 4})), "7");
}

TEST_F(ExpertOffloadFaultTest, APassThatEndedElsewhereIsFollowedByOneFromTheFirstLayer) {
  Make(4);
  ASSERT_TRUE(Run(0, {1, 1, 1, 1, 1, 1, 1, 1}).ok());
  EXPECT_EQ(Sorted(*Run(0, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
  EXPECT_EQ(Sorted(*Run(1, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
  EXPECT_THAT(Run(1, {1, 1, 1, 1, 1, 1, 1, 1}).status().message(),
              HasSubstr("MoE layer 1, micro-batch 0, runs; it is the turn of MoE layer 0, micro-batch 0"));
}

TEST_F(ExpertOffloadFaultTest, WaitsAtMostUntilTheDeadline) {
  Make(4);
  copies_.Hold();
  const absl::Status late = Run(0, {1, 1, 1, 1, 1, 1, 1, 1}, absl::Now() + absl::Milliseconds(5)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  copies_.AllowAll();
  EXPECT_EQ(Sorted(*Run(0, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
}

// What later micro-batches need is not given up for an earlier one's, nor what one has used while others come, as long
// as there is anything else; the parts are one run of the layer.
TEST_F(ExpertOffloadFaultTest, AMicroBatchKeepsWhatLaterOnesNeed) {
  for (const char* policy : {"lru", "auto"}) {
    SCOPED_TRACE(policy);
    Make(policy == std::string("lru") ? 12 : 6, PolicyOf(policy));  // lru has a cache per layer
    ASSERT_TRUE(Run(0, {1, 1, 1, 1, 1, 1, 0, 0}).ok());
    ASSERT_TRUE(Run(1, {0, 0, 0, 0, 0, 0, 0, 0}).ok());
    const auto held = [this](const std::vector<int32_t>& experts) {
      std::string found;
      for (const int32_t e : experts)
        if (offload_->store().StateOf({0, e}) != SlotState::kFree) absl::StrAppend(&found, e);
      return found;
    };
    const std::vector<int32_t> later = {1, 1, 1, 0, 0, 0, 0, 0}, last = {1, 0, 0, 0, 0, 0, 0, 0};
    const auto part = [&](int part, const std::vector<int32_t>& known, const std::vector<int>& rows) {
      const auto waves = RunPart({.chunk = part, .num_chunks = 3}, rows, known);
      EXPECT_TRUE(waves.ok()) << waves.status();
      return waves.ok() ? Sorted(*waves) : "";
    };
    const std::string before = held({0, 1, 2});
    EXPECT_FALSE(before.empty());
    EXPECT_EQ(part(0, later, {0, 0, 0, 0, 0, 1, 2, 1}), "567");
    EXPECT_EQ(held({0, 1, 2}), before) << "later ones need them";
    EXPECT_EQ(part(1, last, {0, 1, 1, 0, 0, 0, 1, 0}), "126");
    EXPECT_EQ(held({5, 6, 7}), "567") << "an earlier one has used them";
    EXPECT_EQ(part(2, {}, {1, 0, 0, 0, 0, 1, 0, 1}), "057");
    EXPECT_TRUE(Run(1, {0, 0, 0, 0, 0, 0, 0, 1}).ok());
    // Out of turn.
    EXPECT_THAT(RunPart({.chunk = 1, .num_chunks = 2}, {1, 0, 0, 0, 0, 0, 0, 0}).status().message(),
                HasSubstr("MoE layer 0, micro-batch 1, runs; it is the turn of MoE layer 0, micro-batch 0"));
  }
}

TEST_F(ExpertOffloadFaultTest, APassThatEndsBetweenMicroBatchesIsFollowedByOneFromTheFirst) {
  Make(4);
  ASSERT_TRUE(RunPart({.chunk = 0, .num_chunks = 2}, {1, 0, 0, 0, 0, 0, 0, 0}).ok());
  EXPECT_EQ(Sorted(*Run(0, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
  EXPECT_EQ(Sorted(*Run(1, {1, 1, 1, 1, 1, 1, 1, 1})), "01234567");
}

TEST_F(ExpertOffloadFaultTest, SaysWhatItDoesNotDo) {
  Make(4);
  ThreadPool pool(1, false);
  const Stream stream = Stream::OnCpu(&pool);
  auto ranks = test::MakeGroup(test::Backend::kLocal, 1);
  const pipeline::MoeSchedule one = pipeline::BuildExpertParallel({.micro_batches = 1, .shared_expert = false});
  const Tensor x = model_.RandomRows(2, 1), residual = model_.RandomResidual(2, 1);
  MoeExecutor executor;
  const MoeLayer layer = model_.LayerOf(offload_.get());
  const std::vector<std::vector<int32_t>> others = {{7, 6, 5, 4, 3, 2, 1, 0, 8}};
  const ExpertLayout more = ExpertLayout::FromResidents(9, others);
  MoeStats stats;
  const MoeContext step = {
      .stream = &stream, .comm = ranks[0].get(), .layout = &more, .schedule = &one, .stats = &stats};
  EXPECT_THAT(executor.Run(step, {}, layer, x, residual).message(),
              HasSubstr("the layout has expert 8 here, which is not one of the store's 8"));
}

}  // namespace
}  // namespace switchyard::moe
