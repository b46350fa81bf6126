// Workers of a group that take from one memory, without their network: together they take no more than there is, or all
// of them say what they need and what sets the limit.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/model/memory_plan.h"
#include "workers/worker.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";
constexpr int64_t kPlenty = int64_t{1} << 32;
constexpr int kWorld = 2;

class WorkerMemoryTest : public testing::Test {
 protected:
  WorkerMemoryTest() : available_(kWorld, kPlenty), domains_(kWorld, "the container") {
    settings_ = {.kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 128};
  }
  void Open(int rank) {
    WorkerOptions options;
    options.model_dir = kModel;
    options.memory = [this, rank] {
      const auto r = static_cast<size_t>(rank);
      return MachineMemory{.total_bytes = kPlenty,
                           .available_bytes = available_[r],
                           .limit = "/sys/fs/cgroup/memory.max allows some bytes",
                           .domain = domains_[r]};
    };
    auto worker = Worker::Open(std::move(options));
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers_[static_cast<size_t>(rank)] = *std::move(worker);
  }
  // What each of them says to the next seat.
  std::vector<absl::Status> Join() {
    ++epoch_;
    InMemoryStore store;
    std::vector<absl::Status> joined(kWorld);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        const Seat seat = {.epoch = epoch_, .rank = rank, .world = kWorld, .token = "secret", .address = "127.0.0.1"};
        joined[static_cast<size_t>(rank)] = workers_[static_cast<size_t>(rank)]->Join(seat, settings_, &store, nullptr);
        // Whoever cannot join is gone, as its process would be; the server then tells the others.
        if (cancels_ && !joined[static_cast<size_t>(rank)].ok()) store.CancelWaits("a rank is lost");
      });
    }
    for (std::thread& thread : threads) thread.join();
    return joined;
  }
  void OpenAll() {
    for (int rank = 0; rank < kWorld; ++rank) ASSERT_NO_FATAL_FAILURE(Open(rank));
  }
  // Of seven experts rank 0 has four.
  int64_t NeedOf(int rank) const {
    const Worker& worker = *workers_[0];
    return static_cast<int64_t>(MemoryBytes(
        worker.config(),
        {.dtype = worker.dtype(), .experts_per_layer = 4 - rank, .kv_cache_bytes = settings_.kv_cache_bytes}));
  }
  int64_t NeedOfAll() const { return NeedOf(0) + NeedOf(1); }
  void LeaveAll() {
    for (const auto& worker : workers_) worker->Leave();
  }

  std::vector<int64_t> available_;  // [kWorld] bytes
  std::vector<std::string> domains_;
  EngineSettings settings_;
  int64_t epoch_ = 0;
  bool cancels_ = true;
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
                      HasSubstr(absl::StrCat("worker has ", NeedOf(rank) - 1, " bytes available: ")),
                      HasSubstr("/sys/fs/cgroup/memory.max allows some bytes, and 2 workers share what is left"),
                      HasSubstr(absl::StrCat("the other 1 needs ", NeedOf(1 - rank), " bytes"))));
  }
}

TEST_F(WorkerMemoryTest, WorkersOfTwoMachinesDoNotShare) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  available_ = {NeedOf(0), NeedOf(1)};
  domains_ = {"one", "another"};
  EXPECT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
}

// What the survivor holds is not counted again, but what it has not touched yet is.
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

// Caches that size themselves: a quarter of what weights leave, in equal parts.
TEST_F(WorkerMemoryTest, CachesShareWhatIsLeft) {
  ASSERT_NO_FATAL_FAILURE(OpenAll());
  settings_.kv_cache_bytes = 0;
  settings_.max_num_seqs = 1 << 20;
  const int64_t room = 64 << 20;
  available_ = {NeedOfAll() + room, NeedOfAll() + room};
  ASSERT_THAT(Join(), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  const Worker& worker = *workers_[0];
  const int64_t block = KvBytesPerToken(worker.config(), worker.dtype()) * settings_.block_size;
  for (const auto& each : workers_) EXPECT_LE(each->num_kv_blocks() * block, room / 4 / kWorld);
  EXPECT_GT(worker.num_kv_blocks() * block, room / 4 / kWorld * 9 / 10);
}

}  // namespace
}  // namespace switchyard
