// Workers on one machine, here threads of one process, read each other's experts: the tokens of one worker, with rows
// that stay and with rows that go to their experts' homes; and when experts stay with their workers.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/huge_shared_pages.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::Each;

constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr int kTokens = 6, kPrompt = 20;

// Replaces values that are set for a key.
class FalseStore : public comm::InMemoryStore {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return comm::InMemoryStore::Set(key, key == key_ ? value_ : value);
  }
  std::string key_, value_;
};

class ExpertsInPlaceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::HasHugeSharedPages()) GTEST_SKIP() << "nothing is shared on this kernel";
  }
  void Open(int rank, const std::string& budget = "") {
    WorkerOptions options;
    options.model_dir = "tests/golden/models/qwen3-qknorm";  // seven experts
    options.experts.budget = budget;
    options.experts.file_dir = "/dev/shm";
    auto worker = Worker::Open(std::move(options));
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers_[static_cast<size_t>(rank)] = *std::move(worker);
  }
  void OpenAll(int world) {
    workers_.resize(static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank) ASSERT_NO_FATAL_FAILURE(Open(rank));
  }
  // On a thread for each rank.
  void OnRanks(const std::function<void(int rank)>& run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
  }
  void Join() {
    ++epoch_;
    FalseStore store;
    store.key_ = false_key_;
    store.value_ = "/nowhere";
    std::vector<absl::Status> joined(workers_.size());
    OnRanks([&](int rank) {
      const fleet::RankAssignment assignment = {.epoch = epoch_,
                                                .rank = rank,
                                                .world = static_cast<int>(workers_.size()),
                                                .store_token = "secret",
                                                .form_deadline_ms = 30'000};
      joined[static_cast<size_t>(rank)] =
          workers_[static_cast<size_t>(rank)]->Join(assignment, "127.0.0.1", settings_, &store, nullptr);
    });
    EXPECT_THAT(joined, Each(absl::OkStatus()));
  }
  void LeaveAll() {
    for (const auto& worker : workers_) worker->Leave();
  }
  std::vector<bool> InPlace() const {
    std::vector<bool> in_place;
    for (const auto& worker : workers_) in_place.push_back(worker->experts_in_place());
    return in_place;
  }

  // The answer to a prompt of rank 0, whose step `decides` names; counts what was sent.
  std::vector<int32_t> Tokens(const std::function<bool(int64_t step)>& decides) {
    batching::StepItem item;
    item.num_query = kPrompt;
    item.sample = true;
    item.new_blocks = {3, 1};
    item.init = batching::SlotInit{.tokens = {}, .num_prompt_tokens = kPrompt, .sampling = {}};
    for (int32_t i = 0; i < kPrompt; ++i) item.init->tokens.push_back(5 + 7 * i);
    item.init->sampling.temperature = 0;
    std::vector<int32_t> tokens;
    sent_ = 0;
    for (int64_t step = 1; step <= kTokens; ++step) {
      batching::StepPlan head;
      head.step = ++step_;
      head.decides = decides(step);
      std::vector<batching::RankPlan> parts(workers_.size());
      parts[0].items = {item};
      if (step == 1 && step_ > 1 && has_slot_) parts[0].freed_slots = {0};
      std::vector<absl::StatusOr<batching::RankResult>> results(workers_.size(), absl::UnknownError(""));
      OnRanks([&](int rank) {
        const auto r = static_cast<size_t>(rank);
        const absl::Status started = workers_[r]->Start(head, parts[r], kLimit);
        results[r] = started.ok() ? workers_[r]->Finish() : started;
      });
      for (const auto& result : results) {
        EXPECT_TRUE(result.ok()) << result.status();
        if (!result.ok()) return tokens;
        sent_ += result->rows_sent;
      }
      has_slot_ = true;
      tokens.push_back(results[0]->items[0].tokens[0]);
      item = {};
      item.start_pos = kPrompt - 1 + static_cast<int32_t>(step);
      item.num_query = 1;
      item.sample = true;
    }
    return tokens;
  }
  // Of one worker.
  std::vector<int32_t> Expected() {
    OpenAll(1);
    Join();
    EXPECT_EQ(InPlace(), std::vector<bool>{false});
    std::vector<int32_t> tokens = Tokens([](int64_t) { return true; });
    workers_.clear();
    has_slot_ = false;
    step_ = 0;
    return tokens;
  }
  // A new group begins with empty slots.
  void JoinAnew() {
    LeaveAll();
    has_slot_ = false;
    step_ = 0;
    Join();
  }

  fleet::EngineSettings settings_ = {
      .kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 128};
  std::string false_key_;
  int64_t epoch_ = 0, step_ = 0, sent_ = 0;
  bool has_slot_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
};

bool Always(int64_t) { return true; }
bool Never(int64_t) { return false; }

TEST_F(ExpertsInPlaceTest, AnyWorkerComputesAnyExpert) {
  const std::vector<int32_t> expected = Expected();
  ASSERT_NO_FATAL_FAILURE(OpenAll(3));
  Join();
  EXPECT_THAT(InPlace(), Each(true));
  EXPECT_EQ(Tokens(Always), expected);
  EXPECT_EQ(sent_, 0);
  EXPECT_EQ(Tokens(Never), expected);
  EXPECT_GT(sent_, 0);
  EXPECT_EQ(Tokens([](int64_t step) { return step % 2 == 0; }), expected);
}

// One has no experts of its own.
TEST_F(ExpertsInPlaceTest, MoreWorkersThanExperts) {
  const std::vector<int32_t> expected = Expected();
  ASSERT_NO_FATAL_FAILURE(OpenAll(8));
  Join();
  EXPECT_THAT(InPlace(), Each(true));
  EXPECT_EQ(Tokens(Always), expected);
  EXPECT_EQ(Tokens(Never), expected);
}

// Its experts are in another file then.
TEST_F(ExpertsInPlaceTest, AWorkerThatComesAnew) {
  const std::vector<int32_t> expected = Expected();
  ASSERT_NO_FATAL_FAILURE(OpenAll(2));
  Join();
  LeaveAll();
  ASSERT_NO_FATAL_FAILURE(Open(1));
  JoinAnew();
  EXPECT_THAT(InPlace(), Each(true));
  EXPECT_EQ(Tokens(Always), expected);
  // One that has no room for its own experts: all stay with their workers, and survivors load anew.
  ASSERT_NO_FATAL_FAILURE(Open(1, "50%"));
  JoinAnew();
  EXPECT_THAT(InPlace(), Each(false));
  EXPECT_EQ(Tokens(Always), expected);
  EXPECT_GT(sent_, 0);
}

TEST_F(ExpertsInPlaceTest, WhereOneCannotReadAnothersExpertsAllStay) {
  const std::vector<int32_t> expected = Expected();
  ASSERT_NO_FATAL_FAILURE(OpenAll(2));
  false_key_ = "experts_in_place_file/1";
  Join();
  EXPECT_THAT(InPlace(), Each(false));
  EXPECT_EQ(Tokens(Always), expected);
  EXPECT_GT(sent_, 0);
  // The next group tries again.
  false_key_.clear();
  JoinAnew();
  EXPECT_THAT(InPlace(), Each(true));
  EXPECT_EQ(Tokens(Always), expected);
}

TEST_F(ExpertsInPlaceTest, ExpertsOfAnotherMachineStayThere) {
  const std::vector<int32_t> expected = Expected();
  ASSERT_NO_FATAL_FAILURE(OpenAll(2));
  false_key_ = "experts_in_place/1";
  Join();
  EXPECT_THAT(InPlace(), Each(false));
  EXPECT_EQ(Tokens(Always), expected);
}

TEST_F(ExpertsInPlaceTest, OtherModesLeaveThemAtHome) {
  ASSERT_NO_FATAL_FAILURE(OpenAll(2));
  settings_.placement.mode = placement::PlacementMode::kStatic;
  Join();
  EXPECT_THAT(InPlace(), Each(false));
  settings_.placement.mode = placement::PlacementMode::kAuto;
  settings_.add_outputs = true;
  JoinAnew();
  EXPECT_THAT(InPlace(), Each(false));
}

}  // namespace
}  // namespace switchyard::worker
