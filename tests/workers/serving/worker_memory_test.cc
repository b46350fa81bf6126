// Workers of a group that take from one memory, without their network: together they take no more than there is, or all
// of them say what they need and what sets the limit.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/model/config/memory_plan.h"
#include "workers/serving/rank_expert_file.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";
constexpr int64_t kPlenty = int64_t{1} << 32;
constexpr int kWorld = 2;

class NotifyingStore : public comm::InMemoryStore {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const absl::Status status = comm::InMemoryStore::Set(key, value);
    if (!reported_.exchange(true)) written.Notify();
    return status;
  }
  absl::Notification written;  // a key, whichever

 private:
  std::atomic<bool> reported_{false};
};

class WorkerMemoryTest : public testing::Test {
 protected:
  WorkerMemoryTest() : available_(kWorld, kPlenty), groups_(kWorld, "the container") {
    settings_ = {.kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 128};
  }
  void Open(int rank) {
    WorkerOptions options;
    options.model_dir = kModel;
    options.experts = experts_;
    options.memory = [this, rank] {
      const auto r = static_cast<size_t>(rank);
      if (looks_) looks_(rank);
      std::vector<MemoryPool> pools = {
          {.name = "the machine", .available_bytes = on_machine_, .limit = "the machine's"}};
      pools.push_back({.name = groups_[r],
                       .available_bytes = available_[r],
                       .limit = "/sys/fs/cgroup/memory.max allows some bytes"});
      return MachineMemory{.total_bytes = kPlenty, .pools = std::move(pools)};
    };
    auto worker = Worker::Open(std::move(options));
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers_[static_cast<size_t>(rank)] = *std::move(worker);
  }
  // The status of each worker after the next assignment.
  std::vector<absl::Status> Join() {
    ++epoch_;
    NotifyingStore store;
    std::vector<absl::Status> joined(kWorld);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        if (rank == late_) {
          EXPECT_TRUE(store.written.WaitForNotificationWithTimeout(absl::Seconds(30)));
          late_holds_ = false;
        }
        const fleet::RankAssignment assignment = {
            .epoch = epoch_, .rank = rank, .world = kWorld, .store_token = "secret", .form_deadline_ms = 30'000};
        joined[static_cast<size_t>(rank)] =
            workers_[static_cast<size_t>(rank)]->Join(assignment, "127.0.0.1", settings_, &store, nullptr);
        // A worker that cannot join is gone, as its process would be; the server then reports the others.
        if (cancels_ && !joined[static_cast<size_t>(rank)].ok()) store.CancelWaits("a rank is lost");
      });
    }
    for (std::thread& thread : threads) thread.join();
    return joined;
  }
  void OpenAll() {
    for (int rank = 0; rank < kWorld; ++rank) ASSERT_NO_FATAL_FAILURE(Open(rank));
  }
  // Rank 0 has four of seven experts.
  int64_t NeedOf(int rank) const {
    const Worker& worker = *workers_[0];
    return static_cast<int64_t>(model::MemoryBytes(worker.config(), {.dtype = worker.dtype(),
                                                                     .experts_per_layer = 4 - rank,
                                                                     .kv_cache_bytes = settings_.kv_cache_bytes,
                                                                     .positions = settings_.max_model_len}));
  }
  int64_t NeedOfAll() const { return NeedOf(0) + NeedOf(1); }
  void LeaveAll() {
    for (const auto& worker : workers_) worker->Leave();
  }

  std::vector<int64_t> available_;   // [kWorld] bytes
  std::vector<std::string> groups_;  // [kWorld] that they are in
  int64_t on_machine_ = kPlenty;     // bytes
  offload::ExpertBudgetOptions experts_;
  fleet::EngineSettings settings_;
  int64_t epoch_ = 0;
  bool cancels_ = true;
  std::function<void(int rank)> looks_;  // called where a rank reads available_
  int late_ = -1;                        // joins once another rank has written to the store
  std::atomic<bool> late_holds_{true};
  std::vector<std::unique_ptr<Worker>> workers_ = std::vector<std::unique_ptr<Worker>>(kWorld);
};

TEST_F(WorkerMemoryTest, WhatTwoNeedHasToBeThere) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {NeedOfAll(), NeedOfAll() + 100};
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// Each of them would fit alone.
TEST_F(WorkerMemoryTest, AllOfThemRefuseWhatDoesNotFit) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {NeedOfAll() + 100, NeedOfAll() - 1};
  cancels_ = false;  // none needs it: all have seen all claims
  const std::vector<absl::Status> joined = Join();
  for (int rank = 0; rank < kWorld; ++rank) {
    const absl::Status& status = joined[static_cast<size_t>(rank)];
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("config needs ", NeedOf(rank), " bytes")),
                      HasSubstr("RoPE table of 128 positions "),
                      HasSubstr(absl::StrCat("worker has ", NeedOf(rank) - 1, " bytes available: ")),
                      HasSubstr("/sys/fs/cgroup/memory.max allows some bytes, and 2 workers share what is left"),
                      HasSubstr(absl::StrCat("the other 1 needs ", NeedOf(1 - rank), " bytes"))));
  }
}

// Each container's limit allows what its worker needs, but not the machine both.
TEST_F(WorkerMemoryTest, ContainersShareTheMachine) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {NeedOf(0), NeedOf(1)};
  groups_ = {"one", "another"};
  on_machine_ = NeedOfAll() - 1;
  cancels_ = false;
  const std::vector<absl::Status> joined = Join();
  for (const absl::Status& status : joined) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the machine's, and 2 workers share what is left"));
  }
  on_machine_ = NeedOfAll();
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// Caches that size themselves, where the machine has less than both containers together.
TEST_F(WorkerMemoryTest, CachesOfContainersShareTheMachine) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  settings_.kv_cache_bytes = 0;
  settings_.max_num_seqs = 1 << 20;
  const int64_t room = 64 << 20;
  available_ = {NeedOf(0) + room, NeedOf(1) + room};
  groups_ = {"one", "another"};
  on_machine_ = NeedOfAll() + room;
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  const Worker& worker = *workers_[0];
  const int64_t block = model::KvBytesPerToken(worker.config(), worker.dtype()) * settings_.block_size;
  for (const auto& each : workers_) EXPECT_LE(each->num_kv_blocks() * block, room / 4 / kWorld);
}

TEST_F(WorkerMemoryTest, WorkersOfTwoGroupsDoNotShareTheirLimits) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {NeedOf(0), NeedOf(1)};
  groups_ = {"one", "another"};
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// The survivor's memory is not counted again, except the part that it has not touched yet.
TEST_F(WorkerMemoryTest, ANewcomerFitsBesideASurvivor) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  LeaveAll();
  workers_[1].reset();
  ASSERT_NO_FATAL_FAILURE(Open(1));
  available_ = {NeedOf(1), NeedOf(1)};
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  LeaveAll();
  workers_[1].reset();
  ASSERT_NO_FATAL_FAILURE(Open(1));
  available_ = {NeedOf(1) - 1, NeedOf(1) - 1};
  const std::vector<absl::Status> joined = Join();
  EXPECT_FALSE(joined[0].ok());
  EXPECT_TRUE(absl::IsResourceExhausted(joined[1])) << joined[1];
}

// As of another server, which took these workers over.
TEST_F(WorkerMemoryTest, OtherSettingsAreObeyedByWhoHasLoaded) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  LeaveAll();
  const int64_t before = workers_[0]->num_kv_blocks();
  settings_.kv_cache_bytes *= 4;
  settings_.max_num_seqs *= 2;
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  EXPECT_GE(workers_[0]->num_kv_blocks(), 4 * before);
  LeaveAll();
  available_ = {NeedOfAll() - 1, NeedOfAll() - 1};
  settings_.kv_cache_bytes *= 2;
  cancels_ = false;  // or the first refusal ends the other's wait
  for (const absl::Status& status : Join()) EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

// A cache that sized itself takes its memory as it is used, whatever else its process holds.
TEST_F(WorkerMemoryTest, WhatASurvivorHasNotTouchedIsStillToCome) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  settings_.kv_cache_bytes = 0;
  settings_.max_num_seqs = 1 << 20;
  const int64_t room = 64 << 20, cache = room / 4 / kWorld;
  available_ = {NeedOfAll() + room, NeedOfAll() + room};
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  const std::vector<char> held(static_cast<size_t>(room), 1);
  LeaveAll();
  workers_[1].reset();
  ASSERT_NO_FATAL_FAILURE(Open(1));
  available_ = {NeedOf(1) + cache / 2, NeedOf(1) + cache / 2};
  EXPECT_TRUE(absl::IsResourceExhausted(Join()[1])) << held.back();
}

// Rank 1 gives its memory back only once rank 0 is under way.
TEST_F(WorkerMemoryTest, NobodyLooksBeforeAllHaveUnloaded) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {0, NeedOfAll()};
  late_ = 1;
  looks_ = [this](int rank) {
    if (rank == 0 && !late_holds_) available_[0] = NeedOfAll();
  };
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// Caches that size themselves: a quarter of what weights leave, in equal parts.
TEST_F(WorkerMemoryTest, CachesShareWhatIsLeft) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  settings_.kv_cache_bytes = 0;
  settings_.max_num_seqs = 1 << 20;
  const int64_t room = 64 << 20;
  available_ = {NeedOfAll() + room, NeedOfAll() + room};
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  const Worker& worker = *workers_[0];
  const int64_t block = model::KvBytesPerToken(worker.config(), worker.dtype()) * settings_.block_size;
  for (const auto& each : workers_) EXPECT_LE(each->num_kv_blocks() * block, room / 4 / kWorld);
  EXPECT_GT(worker.num_kv_blocks() * block, room / 4 / kWorld * 9 / 10);
}

TEST_F(WorkerMemoryTest, AutomaticExpertMemoryIsWhatTheyLeaveEachOther) {
  const model::TempDir dir;
  experts_.budget = "auto";
  experts_.file_dir = dir.path();
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  const model::ModelConfig config = workers_[0]->config();
  const DType dtype = workers_[0]->dtype();
  const int64_t expert_bytes = model::ExpertFormsOf(config, dtype, DeviceKind::kCpu).bytes();
  // Rank 0 has four of seven experts.
  const auto slots_of = [&](int rank) { return std::min<int64_t>(config.top_k + 1, 4 - rank); };
  const auto least_of = [&](int rank) {
    model::MemoryNeed need = {.dtype = dtype, .kv_cache_bytes = settings_.kv_cache_bytes};
    need.expert_slots = slots_of(rank);
    need.positions = settings_.max_model_len;
    return static_cast<int64_t>(model::MemoryBytes(config, need));
  };
  const int64_t least = least_of(0) + least_of(1);
  constexpr int64_t kKept = 384 << 20;  // for what is no expert
  for (const int64_t more : {int64_t{0}, 5 * expert_bytes}) {
    SCOPED_TRACE(more);
    available_.assign(kWorld, least + kWorld * (kKept + more));
    ASSERT_NO_FATAL_FAILURE(OpenAll());
    EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
    for (int rank = 0; rank < kWorld; ++rank) {
      EXPECT_EQ(workers_[static_cast<size_t>(rank)]->expert_budget().budget,
                absl::StrCat(slots_of(rank) * expert_bytes + more));
    }
  }
  // One that comes again beside one that stays gets what it had.
  available_.assign(kWorld, least + kWorld * (kKept + 5 * expert_bytes));
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  const std::string before = workers_[1]->expert_budget().budget;
  LeaveAll();
  ASSERT_NO_FATAL_FAILURE(Open(1));
  available_.assign(kWorld, least_of(1) + kKept + 5 * expert_bytes + settings_.kv_cache_bytes);
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  int64_t bytes_before = 0, bytes_now = 0;
  ASSERT_TRUE(absl::SimpleAtoi(before, &bytes_before));
  ASSERT_TRUE(absl::SimpleAtoi(workers_[1]->expert_budget().budget, &bytes_now));
  EXPECT_GE(bytes_now, bytes_before);
  available_.assign(kWorld, least - 1);
  cancels_ = false;
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  for (const absl::Status& joined : Join()) EXPECT_TRUE(absl::IsResourceExhausted(joined)) << joined;
}

}  // namespace
}  // namespace switchyard::worker
