// Slots and copies: one copy for many waiters, demand before prefetch, pins, faults, deadlines, the end.
#include "workers/moe/experts/expert_store.h"

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/moe/fake_copier.h"

namespace switchyard::moe {
namespace {

using test::CopyScript;
using test::FakeCopier;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kExperts = 8;
constexpr int kLayers = 4;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// Has several chunks under way, and moves a chunk's bytes only when it is over: the last started first, or any.
class DeepCopier : public ExpertCopier {
 public:
  DeepCopier(CopyScript* script, bool last_first) : script_(script), last_first_(last_first) {}
  int depth() const override { return 3; }
  void Start(const ExpertChunk& chunk) override { under_way_.push_back(chunk); }
  Finished Await() override {
    const size_t i = last_first_ ? under_way_.size() - 1 : random_() % under_way_.size();
    Finished finished = {under_way_[i], script_->Begin(under_way_[i])};
    under_way_.erase(under_way_.begin() + static_cast<int64_t>(i));
    if (finished.status.ok()) script_copier_.Copy(finished.chunk).IgnoreError();
    return finished;
  }

 private:
  CopyScript* const script_;
  const bool last_first_;
  std::mt19937 random_{5};
  HostExpertCopier script_copier_;
  std::vector<ExpertChunk> under_way_;
};

// A store over kLayers * kExperts experts whose bytes say which they are; chunks of a quarter of an expert.
class ExpertStoreTest : public testing::Test {
 protected:
  void Make(int num_slots, const ExpertForms& forms) { Make(num_slots, 0, nullptr, forms); }
  void Make(int num_slots, double bytes_per_second = 0, std::unique_ptr<ExpertCopier> copier = nullptr) {
    Make(num_slots, bytes_per_second, std::move(copier), expert_);
  }
  void Make(int num_slots, double bytes_per_second, std::unique_ptr<ExpertCopier> copier, const ExpertForms& forms) {
    if (copier == nullptr) copier = std::make_unique<FakeCopier>(&script_);
    store_.reset();
    ExpertStoreOptions options;
    options.expert = forms;
    options.num_slots = num_slots;
    options.chunk_bytes = expert_.bytes / 4;
    options.bytes_per_second = bytes_per_second;
    options.source = [this](const ExpertId& id) { return At(id); };
    auto store = ExpertStore::Create(options, std::move(copier));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void SetUp() override {
    host_.resize(static_cast<size_t>(expert_.bytes) * kExperts * kLayers);
    for (size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<char>(i * 31 + i / expert_.bytes);
  }
  void TearDown() override { script_.AllowAll(); }
  const char* At(const ExpertId& id) const { return host_.data() + (id.layer * kExperts + id.expert) * expert_.bytes; }
  bool Holds(const ExpertLease& lease, int64_t i, const ExpertId& id) const {
    return std::memcmp(lease.gate_up(i).data(), At(id), static_cast<size_t>(lease.gate_up(i).bytes())) == 0 &&
           std::memcmp(lease.down(i).data(), At(id) + expert_.down_offset,
                       static_cast<size_t>(lease.down(i).bytes())) == 0;
  }
  absl::Status Demand(const ExpertId& id, int slot) { return store_->StartCopy(id, slot, CopyPriority::kDemand); }
  absl::Status Prefetch(const ExpertId& id, int slot) { return store_->StartCopy(id, slot, CopyPriority::kPrefetch); }

  const PackedExpert expert_{32, 32, DType::kF32, DeviceKind::kCpu};
  std::vector<char> host_;
  test::CopyScript script_;
  std::unique_ptr<ExpertStore> store_;  // last: its thread uses the script
};

TEST_F(ExpertStoreTest, BringsBytesIntoSlots) {
  Make(3);
  const std::vector<ExpertId> ids = {{1, 5}, {3, 7}};
  ASSERT_TRUE(Demand(ids[0], 2).ok());
  ASSERT_TRUE(Demand(ids[1], 0).ok());
  const auto lease = store_->Acquire(ids, Soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->slot(0), 2);
  EXPECT_EQ(lease->slot(1), 0);
  EXPECT_TRUE(Holds(*lease, 0, ids[0]));
  EXPECT_TRUE(Holds(*lease, 1, ids[1]));
  EXPECT_EQ(store_->counters().copied_bytes, 2 * expert_.bytes);
}

TEST_F(ExpertStoreTest, OneCopyForManyWaiters) {
  Make(2);
  script_.Hold();
  const ExpertId id{0, 3};
  ASSERT_TRUE(Demand(id, 1).ok());
  EXPECT_THAT(Demand(id, 0).message(), HasSubstr("it has slot 1"));
  std::vector<std::thread> waiters;
  std::vector<int> held(6, 0);
  for (int& one : held) {
    waiters.emplace_back([&] {
      const auto lease = store_->Acquire({id}, Soon());
      one = lease.ok() && Holds(*lease, 0, id) ? 1 : 0;
    });
  }
  script_.AllowAll();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(held, std::vector<int>(6, 1));
  EXPECT_EQ(script_.begun().size(), 4u);
  EXPECT_EQ(store_->counters().misses, 1);
  EXPECT_EQ(store_->counters().hits, 5);
}

TEST_F(ExpertStoreTest, AFailedCopyWakesAllItsWaitersAndCanBeTriedAgain) {
  Make(2);
  script_.Hold();
  const ExpertId bad{0, 3}, good{0, 4};
  script_.FailAt(bad, expert_.bytes / 2, absl::DataLossError("page is gone"));
  ASSERT_TRUE(Demand(bad, 1).ok());
  ASSERT_TRUE(Demand(good, 0).ok());
  std::vector<std::thread> waiters;
  std::vector<absl::Status> statuses(5);
  for (absl::Status& status : statuses) {
    waiters.emplace_back([&] { status = store_->Acquire({good, bad}, Soon()).status(); });
  }
  script_.AllowAll();
  for (std::thread& waiter : waiters) waiter.join();
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::DataLossError("page is gone"));
  // A wait that begins after the failure gets the same error.
  EXPECT_EQ(store_->Acquire({bad}, Soon()).status(), absl::DataLossError("page is gone"));
  EXPECT_EQ(store_->StateOf(bad), SlotState::kFree);
  EXPECT_EQ(store_->counters().failed, 1);
  // Nobody holds the other one either.
  EXPECT_TRUE(store_->Acquire({good}, Soon()).ok());
  EXPECT_TRUE(store_->Evict(0).ok());
  script_.Heal();
  ASSERT_TRUE(Demand(bad, 1).ok());
  const auto lease = store_->Acquire({bad}, Soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Holds(*lease, 0, bad));
}

TEST_F(ExpertStoreTest, DemandOvertakesPrefetchAtAChunk) {
  Make(4);
  script_.Hold();
  ASSERT_TRUE(Prefetch({1, 0}, 0).ok());
  ASSERT_TRUE(Prefetch({1, 1}, 1).ok());
  ASSERT_TRUE(script_.AwaitBegun(1));  // of the first prefetch
  ASSERT_TRUE(Demand({0, 7}, 2).ok());
  script_.AllowAll();
  ASSERT_TRUE(store_->Acquire({ExpertId{1, 0}, ExpertId{1, 1}}, Soon()).ok());
  std::vector<std::string> order;
  for (const ExpertChunk& chunk : script_.begun()) {
    order.push_back(absl::StrCat(chunk.id.layer, ".", chunk.id.expert));
  }
  order.resize(5);
  EXPECT_THAT(order, ElementsAre("1.0", "0.7", "0.7", "0.7", "0.7"));
}

TEST_F(ExpertStoreTest, ChunksOfAnEvictedCopyDoNotReachTheNextOne) {
  Make(2, 0, std::make_unique<DeepCopier>(&script_, /*last_first=*/true));
  script_.Hold();
  ASSERT_TRUE(Demand({1, 0}, 0).ok());
  ASSERT_TRUE(script_.AwaitBegun(1));  // three of its chunks are under way
  ASSERT_TRUE(store_->Evict(0).ok());
  ASSERT_TRUE(Demand({1, 1}, 0).ok());
  ASSERT_TRUE(Demand({1, 2}, 1).ok());
  script_.AllowAll();
  const auto lease = store_->Acquire({ExpertId{1, 1}, ExpertId{1, 2}}, Soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Holds(*lease, 0, {1, 1}));
  EXPECT_TRUE(Holds(*lease, 1, {1, 2}));
}

TEST_F(ExpertStoreTest, OneOfSeveralChunksMayFail) {
  Make(2, 0, std::make_unique<DeepCopier>(&script_, /*last_first=*/true));
  script_.Hold();
  script_.FailAt({1, 0}, expert_.bytes / 2, absl::DataLossError("page is gone"));
  ASSERT_TRUE(Demand({1, 0}, 0).ok());
  ASSERT_TRUE(Demand({1, 1}, 1).ok());
  ASSERT_TRUE(script_.AwaitBegun(1));
  script_.AllowAll();
  EXPECT_EQ(store_->Acquire({ExpertId{1, 0}}, Soon()).status(), absl::DataLossError("page is gone"));
  script_.Heal();
  ASSERT_TRUE(Demand({1, 0}, 0).ok());
  const auto lease = store_->Acquire({ExpertId{1, 0}, ExpertId{1, 1}}, Soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Holds(*lease, 0, {1, 0}));
  EXPECT_TRUE(Holds(*lease, 1, {1, 1}));
  EXPECT_EQ(store_->counters().failed, 1);
}

TEST_F(ExpertStoreTest, WhoWaitsForAPrefetchHurriesIt) {
  Make(4);
  script_.Hold();
  for (int e = 0; e < 3; ++e) ASSERT_TRUE(Prefetch({1, e}, e).ok());
  ASSERT_TRUE(script_.AwaitBegun(1));
  store_->RaisePriority({1, 2});
  script_.AllowAll();
  ASSERT_TRUE(store_->Acquire({ExpertId{1, 2}}, Soon()).ok());
  const std::vector<ExpertChunk> begun = script_.begun();
  EXPECT_EQ(begun[1].id, (ExpertId{1, 2}));
  EXPECT_EQ(begun[4].id, (ExpertId{1, 2}));
  EXPECT_EQ(store_->counters().late, 1);
  EXPECT_EQ(store_->counters().hits, 0);
}

TEST_F(ExpertStoreTest, PinnedSlotsStay) {
  Make(2);
  const ExpertId id{2, 1};
  ASSERT_TRUE(Demand(id, 0).ok());
  auto lease = store_->Acquire({id}, Soon());
  ASSERT_TRUE(lease.ok());
  EXPECT_THAT(store_->Evict(0).message(), HasSubstr("expert 1 of MoE layer 2 is in use"));
  EXPECT_THAT(Demand({2, 2}, 0).message(), HasSubstr("where expert 1 of MoE layer 2 is"));
  ExpertLease moved = *std::move(lease);
  EXPECT_FALSE(store_->Evict(0).ok());
  moved.Release();
  EXPECT_TRUE(store_->Evict(0).ok());
  EXPECT_EQ(store_->StateOf(id), SlotState::kFree);
  EXPECT_TRUE(Demand({2, 2}, 0).ok());
}

TEST_F(ExpertStoreTest, OneSlotStaysForDemand) {
  Make(2);
  script_.Hold();
  ASSERT_TRUE(Prefetch({0, 0}, 0).ok());
  EXPECT_THAT(Prefetch({0, 1}, 1).message(), HasSubstr("the last of 2 that demand can have"));
  EXPECT_TRUE(Demand({0, 1}, 1).ok());
  script_.AllowAll();
  const auto lease = store_->Acquire({ExpertId{0, 0}, ExpertId{0, 1}}, Soon());
  ASSERT_TRUE(lease.ok());
  EXPECT_EQ(store_->counters().late + store_->counters().hits, 1);
}

TEST_F(ExpertStoreTest, CountsWhatPrefetchesWereWorth) {
  Make(4);
  for (int e = 0; e < 3; ++e) ASSERT_TRUE(Prefetch({0, e}, e).ok());
  ASSERT_TRUE(store_->AwaitCopies(Soon()).ok());
  script_.Hold();
  ASSERT_TRUE(Prefetch({0, 5}, 3).ok());
  store_->RaisePriority({0, 5});
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->AwaitCopies(absl::Now())));
  script_.AllowAll();
  ASSERT_TRUE(store_->Acquire({ExpertId{0, 5}}, Soon()).ok());
  ASSERT_TRUE(store_->Acquire({ExpertId{0, 0}}, Soon()).ok());
  ASSERT_TRUE(store_->Acquire({ExpertId{0, 0}}, Soon()).ok());
  ASSERT_TRUE(store_->Evict(0).ok());
  ASSERT_TRUE(store_->Evict(1).ok());
  ASSERT_TRUE(Demand({3, 3}, 0).ok());
  ASSERT_TRUE(store_->Acquire({ExpertId{3, 3}}, Soon()).ok());
  const ExpertStoreCounters counters = store_->counters();
  EXPECT_EQ(counters.prefetched, 4);
  EXPECT_EQ(counters.wasted, 1);
  EXPECT_EQ(counters.misses, 1);
  EXPECT_EQ(counters.late, 1);
  EXPECT_EQ(counters.hits, 2);
}

TEST_F(ExpertStoreTest, CopiesCanBeGivenUpAtTheirNextChunk) {
  Make(4);
  script_.Hold();
  ASSERT_TRUE(Prefetch({0, 0}, 0).ok());
  ASSERT_TRUE(script_.AwaitBegun(1));
  ASSERT_TRUE(Prefetch({0, 1}, 1).ok());
  ASSERT_TRUE(Demand({0, 4}, 2).ok());
  EXPECT_TRUE(store_->Evict(2).ok());  // nobody waits for it
  ASSERT_TRUE(Demand({0, 2}, 2).ok());
  EXPECT_TRUE(store_->Evict(0).ok());  // its chunk is under way
  EXPECT_TRUE(store_->Evict(1).ok());  // none of it is
  ASSERT_TRUE(Demand({0, 3}, 0).ok());
  script_.AllowAll();
  const auto lease = store_->Acquire({ExpertId{0, 2}, ExpertId{0, 3}}, Soon());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Holds(*lease, 1, {0, 3})) << "what was given up wrote last";
  EXPECT_TRUE(absl::IsNotFound(store_->Acquire({ExpertId{0, 0}}, Soon()).status()));
  EXPECT_EQ(store_->counters().wasted, 0);
  EXPECT_EQ(store_->counters().prefetched, 0);
  EXPECT_EQ(script_.begun().size(), 9u);
}

TEST_F(ExpertStoreTest, ADeadlineSaysWhatIsMissing) {
  Make(2);
  script_.Hold();
  ASSERT_TRUE(Demand({1, 6}, 0).ok());
  script_.Allow(1);
  ASSERT_TRUE(script_.AwaitBegun(2));
  const absl::Status late = store_->Acquire({ExpertId{1, 6}}, absl::Now() + absl::Milliseconds(1)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(late.message(), HasSubstr(absl::StrCat("expert 6 of MoE layer 1, ", expert_.bytes / 4, " of ")));
  script_.AllowAll();
  ASSERT_TRUE(store_->Acquire({ExpertId{1, 6}}, Soon()).ok());
  EXPECT_TRUE(store_->Evict(0).ok()) << "the one that gave up still pins it";
}

TEST_F(ExpertStoreTest, AbortWakesAllWaiters) {
  Make(3);
  script_.Hold();
  ASSERT_TRUE(Demand({0, 0}, 0).ok());  // its chunk is under way
  ASSERT_TRUE(Demand({0, 1}, 1).ok());  // and this one waits
  ASSERT_TRUE(script_.AwaitBegun(1));
  std::vector<absl::Status> statuses(4);
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < statuses.size(); ++i) {
    const ExpertId id{0, static_cast<int32_t>(i % 2)};
    waiters.emplace_back([this, id, &status = statuses[i]] { status = store_->Acquire({id}, Soon()).status(); });
  }
  const absl::Time begin = absl::Now();
  store_->Abort(absl::UnavailableError("the group is gone"));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(8)) << "waited for the chunk that is held";
  for (const absl::Status& status : statuses) EXPECT_EQ(status.message(), "the group is gone");
  EXPECT_EQ(Demand({0, 2}, 2).message(), "the group is gone");
}

TEST_F(ExpertStoreTest, AnEmulatedLinkIsNeverFasterThanItsRate) {
  const double rate = static_cast<double>(expert_.bytes) * 100;  // 10 ms an expert
  Make(4, rate);
  const absl::Time begin = absl::Now();
  std::vector<ExpertId> ids;
  for (int e = 0; e < 4; ++e) {
    ids.push_back({0, e});
    ASSERT_TRUE(Demand(ids.back(), e).ok());
  }
  ASSERT_TRUE(store_->Acquire(ids, Soon()).ok());
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(40));
  EXPECT_GE(store_->counters().wait_seconds, 0.03);
}

// Layers differ in their experts' form: a slot has that of the expert that is in it.
TEST_F(ExpertStoreTest, SlotsHaveTheFormOfTheirExpert) {
  const PackedExpert small(32, 32, DType::kBf16, DeviceKind::kCpu);
  std::vector<PackedExpert> layers(kLayers, expert_);
  layers[1] = small;
  Make(2, ExpertForms(layers));
  const auto expect = [&](const ExpertId& id, const PackedExpert& form) {
    const auto lease = store_->Acquire({id}, Soon());
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_EQ(lease->gate_up(0).dtype(), form.gate_up.dtype);
    EXPECT_EQ(std::memcmp(lease->gate_up(0).data(), At(id), static_cast<size_t>(lease->gate_up(0).bytes())), 0);
    EXPECT_EQ(
        std::memcmp(lease->down(0).data(), At(id) + form.down_offset, static_cast<size_t>(lease->down(0).bytes())), 0);
  };
  ASSERT_LT(small.bytes, expert_.bytes);
  int64_t copied = 0;
  for (const int layer : {0, 1, 2, 1}) {
    const ExpertId id{layer, 3};
    store_->Evict(0).IgnoreError();
    ASSERT_TRUE(Demand(id, 0).ok());
    expect(id, layers[static_cast<size_t>(layer)]);
    copied += layers[static_cast<size_t>(layer)].bytes;
    EXPECT_EQ(store_->counters().copied_bytes, copied);
  }
}

TEST_F(ExpertStoreTest, RefusesOptionsAndSlotsThatCannotBe) {
  Make(2);
  EXPECT_THAT(Demand({0, 0}, 2).message(), HasSubstr("slot 2 is not in [0, 2)"));
  EXPECT_THAT(store_->Evict(-1).message(), HasSubstr("slot -1 is not in [0, 2)"));
  ExpertStoreOptions options;
  options.expert = expert_;
  options.source = [this](const ExpertId& id) { return At(id); };
  EXPECT_THAT(ExpertStore::Create(options, std::make_unique<test::FakeCopier>(&script_)).status().message(),
              HasSubstr("0 slots"));
}

// Threads that acquire, evict and prefetch at random: what a lease shows is its expert, always.
class RandomlyUsedStoreTest : public ExpertStoreTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(, RandomlyUsedStoreTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "SeveralChunksAtOnce" : "OneChunkAtATime"; });

TEST_P(RandomlyUsedStoreTest, ManyThreadsUnderRandomDelays) {
  Make(5, 0, GetParam() ? std::make_unique<DeepCopier>(&script_, /*last_first=*/false) : nullptr);
  script_.Delay(7, absl::Microseconds(60));
  script_.FailAt({3, 7}, 0, absl::DataLossError("always"));
  std::vector<std::thread> threads;
  std::vector<int> acquired(4, 0), wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < 300; ++i) {
        const ExpertId id{static_cast<int32_t>(random() % kLayers), static_cast<int32_t>(random() % kExperts)};
        const int slot = static_cast<int>(random() % 5);
        store_->Evict(slot).IgnoreError();
        store_->StartCopy(id, slot, random() % 2 == 0 ? CopyPriority::kDemand : CopyPriority::kPrefetch).IgnoreError();
        const auto lease = store_->Acquire({id}, Soon());
        if (!lease.ok()) {
          if (absl::IsDeadlineExceeded(lease.status())) ++wrong[t];
          continue;
        }
        ++acquired[t];
        if (!Holds(*lease, 0, id) || id == ExpertId{3, 7}) ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(wrong[t], 0);
    EXPECT_GT(acquired[t], 20);
  }
  const ExpertStoreCounters counters = store_->counters();
  EXPECT_EQ(counters.hits + counters.misses + counters.late, acquired[0] + acquired[1] + acquired[2] + acquired[3]);
  for (const ExpertStore::SlotView& slot : store_->Slots()) EXPECT_FALSE(slot.pinned);
}

}  // namespace
}  // namespace switchyard::moe
