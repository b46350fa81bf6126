// Workers of one machine that compute from one file of experts: who shares, and the tokens of a worker that does not.
#include "workers/serving/host_experts.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::ElementsAre;
using Found = moe::ExpertFile::Found;
using What = Found::What;

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";
constexpr absl::Duration kLimit = absl::Seconds(60);
constexpr int kTokens = 6;

// Runs `of` for each rank, at once.
template <class Of>
void ForRanks(int world, const Of& of) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back([&of, rank] { of(rank); });
  for (std::thread& thread : threads) thread.join();
}

std::vector<HostAgreement> Agree(const std::vector<std::string>& identities, const std::vector<What>& found) {
  const int world = static_cast<int>(identities.size());
  comm::InMemoryStore store;
  std::vector<HostAgreement> agreed(identities.size());
  ForRanks(world, [&](int rank) {
    const auto find = [&](const std::vector<int32_t>&) {
      return Found{.what = found[static_cast<size_t>(rank)], .bytes = 1001};
    };
    auto result =
        AgreeOnHosts(rank, world, 8, identities[static_cast<size_t>(rank)], find, &store, absl::Now() + kLimit);
    ASSERT_TRUE(result.ok()) << result.status();
    agreed[static_cast<size_t>(rank)] = *std::move(result);
  });
  return agreed;
}

TEST(HostExpertsTest, RanksOfOneDirectoryAreAHost) {
  const std::vector<HostAgreement> agreed = Agree({"a", "", "a", "b"}, std::vector<What>(4, What::kRoom));
  EXPECT_THAT(agreed[3].groups.host_of, ElementsAre(0, 1, 0, 3));
  EXPECT_THAT(agreed[3].groups.owner_of, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(HostExperts::ExpertsOf(2, agreed[2].groups), ElementsAre(0, 1, 4, 5));
  EXPECT_TRUE(agreed[0].shares && agreed[2].shares);
  EXPECT_EQ(agreed[0].claimed_bytes, 501);             // a half, rounded up
  EXPECT_FALSE(agreed[1].shares || agreed[3].shares);  // alone, nothing is gained by a file
  EXPECT_TRUE(agreed[1].any_shares());
}

TEST(HostExpertsTest, AllOfAHostFindRoomOrNoneShares) {
  const std::vector<HostAgreement> agreed =
      Agree({"a", "a", "b", "b"}, {What::kRoom, What::kNeither, What::kFile, What::kFile});
  EXPECT_THAT(agreed[0].groups.host_of, ElementsAre(0, 1, 2, 2));
  EXPECT_FALSE(agreed[0].shares || agreed[1].shares);
  EXPECT_EQ(agreed[2].claimed_bytes, 0);  // its memory is taken already
  EXPECT_EQ(agreed[0].lack_room, 2);
  EXPECT_EQ(agreed[2].lack_room, 0);
  EXPECT_TRUE(agreed[2].shares);
}

TEST(HostExpertsTest, ARankAloneUsesAFileThatIsThere) {
  EXPECT_TRUE(Agree({"a"}, {What::kFile})[0].shares);
  EXPECT_FALSE(Agree({"a"}, {What::kFile})[0].any_shares());
  EXPECT_FALSE(Agree({"a"}, {What::kRoom})[0].shares);
  EXPECT_FALSE(Agree({""}, {What::kFile})[0].shares);
}

class SharingWorkersTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string dir = "/dev/shm/switchyard-test-XXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    dir_ = made_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(made_); }

  // A group of so many workers.
  void Join(int world, const std::string& sharing) {
    workers_.clear();
    workers_.resize(static_cast<size_t>(world));
    joined_.assign(static_cast<size_t>(world), absl::OkStatus());
    comm::InMemoryStore store;
    ForRanks(world, [&](int rank) {
      WorkerOptions options;
      options.model_dir = kModel;
      options.experts.sharing = sharing;
      options.experts.file_dir = dir_;
      if (memory_ > 0) {
        options.memory = [this] {
          return MachineMemory{.total_bytes = memory_,
                               .pools = {{.name = "all", .available_bytes = memory_, .limit = "the test's"}}};
        };
      }
      auto worker = Worker::Open(std::move(options));
      ASSERT_TRUE(worker.ok()) << worker.status();
      const fleet::RankAssignment assignment = {
          .epoch = 1, .rank = rank, .world = world, .store_token = "secret", .form_deadline_ms = 30'000};
      const fleet::EngineSettings settings = {
          .kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 256, .max_model_len = 256};
      const absl::Status joined = (*worker)->Join(assignment, "127.0.0.1", settings, &store, nullptr);
      if (memory_ == 0) {
        ASSERT_TRUE(joined.ok()) << joined;
      }
      joined_[static_cast<size_t>(rank)] = joined;
      workers_[static_cast<size_t>(rank)] = *std::move(worker);
    });
  }

  // The answer to a prompt of 200 tokens of rank 0; adds up the rows of experts that each rank computed.
  std::vector<int32_t> Tokens() {
    const int world = static_cast<int>(workers_.size());
    expert_rows_.assign(workers_.size(), 0);
    batching::StepItem item;
    item.num_query = 200;
    item.init = batching::SlotInit{.tokens = {}, .num_prompt_tokens = item.num_query, .sampling = {}};
    for (int32_t i = 0; i < item.num_query; ++i) item.init->tokens.push_back(5 + i * i % 83);
    for (int32_t block = 0; block < 14; ++block) item.new_blocks.push_back(13 - block);
    item.init->sampling.temperature = 0;
    std::vector<int32_t> tokens;
    for (int64_t step = 1; step <= kTokens; ++step) {
      item.sample = true;
      batching::StepPlan head;
      head.step = step;
      head.rank_rows.assign(workers_.size(), 0);
      head.rank_rows[0] = item.num_query;
      ForRanks(world, [&](int rank) {
        batching::RankPlan part;
        if (rank == 0) part.items = {item};
        Worker& worker = *workers_[static_cast<size_t>(rank)];
        ASSERT_TRUE(worker.Start(head, part, kLimit).ok());
        const auto result = worker.Finish();
        ASSERT_TRUE(result.ok()) << result.status();
        expert_rows_[static_cast<size_t>(rank)] += result->expert_rows;
        if (rank == 0) tokens.push_back(result->items[0].tokens[0]);
      });
      item = batching::StepItem();
      item.start_pos = 199 + static_cast<int32_t>(step);
      item.num_query = 1;
    }
    return tokens;
  }
  int NumFiles() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) count += entry.path().extension() == ".pack";
    return count;
  }

  std::string made_, dir_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<int64_t> expert_rows_;
  int64_t memory_ = 0;  // > 0: what workers see; then they may fail to join
  std::vector<absl::Status> joined_;
};

TEST_F(SharingWorkersTest, HaveOneFileAndTheTokensOfOneWorker) {
  Join(1, "auto");
  const std::vector<int32_t> tokens = Tokens();
  const int64_t rows = expert_rows_[0];
  EXPECT_EQ(NumFiles(), 0);
  for (const int world : {2, 3}) {
    Join(world, "auto");
    EXPECT_EQ(NumFiles(), 1);
    EXPECT_EQ(Tokens(), tokens) << world;
    int64_t all = 0, most = 0;
    for (const int64_t of_rank : expert_rows_) {
      all += of_rank;
      most = std::max(most, of_rank);
    }
    EXPECT_EQ(all, rows);
    EXPECT_LT(most, rows);  // the others help
    workers_.pop_back();
    EXPECT_EQ(NumFiles(), 1);  // the others use it
    workers_.clear();
    EXPECT_EQ(NumFiles(), 0);  // nobody does
  }
  Join(2, "never");
  EXPECT_EQ(NumFiles(), 0);
  EXPECT_EQ(Tokens(), tokens);
}

TEST_F(SharingWorkersTest, WhatAKilledWorkerLeftIsUsedOrRemoved) {
  Join(2, "auto");
  const std::vector<int32_t> tokens = Tokens();
  const std::filesystem::path left = std::filesystem::directory_iterator(dir_)->path();
  const std::filesystem::path kept = dir_ + "/kept", other = dir_ + "/switchyard-experts-0-0123.pack";
  std::filesystem::copy_file(left, kept);
  workers_.clear();
  std::filesystem::copy_file(kept, left);
  std::filesystem::copy_file(kept, other);  // of another model
  for (const std::filesystem::path& path : {left, other})
    std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Join(1, "auto");  // alone, from the file that is there
  EXPECT_EQ(workers_[0]->shared_weight_bytes(), static_cast<int64_t>(std::filesystem::file_size(kept)));
  EXPECT_FALSE(std::filesystem::exists(other));
  EXPECT_EQ(Tokens(), tokens);
}

TEST_F(SharingWorkersTest, TheFileIsClaimedOnce) {
  Join(2, "auto");
  const int64_t file = workers_[0]->shared_weight_bytes();
  const int64_t each = workers_[0]->weight_bytes() + (2 << 20);
  workers_.clear();
  memory_ = 2 * each + file;  // more than the file and two of what is not shared
  Join(2, "auto");
  for (const absl::Status& status : joined_) EXPECT_TRUE(status.ok()) << status;
  workers_.clear();
  memory_ = file;  // the caches alone need more
  Join(2, "auto");
  for (const absl::Status& status : joined_) EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(NumFiles(), 0);
}

TEST_F(SharingWorkersTest, WithoutTheDirectoryEachHasItsPart) {
  Join(1, "auto");
  const std::vector<int32_t> tokens = Tokens();
  dir_ = "/proc/none";
  Join(2, "auto");
  EXPECT_EQ(Tokens(), tokens);
}

}  // namespace
}  // namespace switchyard::worker
