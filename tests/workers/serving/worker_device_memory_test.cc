// A worker, without its network, on an emulated device with little memory: what it takes stays within
// --gpu_memory_fraction, others' part included, and graphs that do not fit do without.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/devices/test_device.h"
#include "workers/model/config/memory_plan.h"
#include "workers/serving/worker.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::worker {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int64_t kCapacity = 128 << 20;  // most of it for the workspace of products
constexpr int kTokens = 5;

class WorkerDeviceMemoryTest : public testing::Test {
 protected:
  WorkerDeviceMemoryTest() { cuda_emulation::SetMemoryCapacity(kCapacity); }
  ~WorkerDeviceMemoryTest() override {
    worker_.reset();
    if (others_ != nullptr) RegisteredBackend(device_.kind).Free(0, others_);
    cuda_emulation::Reset();
  }
  // As other processes do.
  void TakeByOthers(int64_t bytes) { others_ = *RegisteredBackend(device_.kind).Allocate(0, bytes); }
  // With the tiny model, in a group of its own.  Its cache takes what it may if `kv_cache_bytes` is 0.
  absl::Status Join(double fraction, bool graphs, int64_t kv_cache_bytes = 0) {
    worker_.reset();
    WorkerOptions options;
    options.model_dir = "tests/golden/models/qwen3-qknorm";
    options.device = device_;
    options.gpu_memory_fraction = fraction;
    options.deterministic = true;
    options.graphs = graphs;
    auto worker = Worker::Open(std::move(options));
    if (!worker.ok()) return worker.status();
    worker_ = *std::move(worker);
    comm::InMemoryStore store;
    return worker_->Join({.epoch = 1, .store_token = "secret", .form_deadline_ms = 30'000}, "127.0.0.1",
                         {.block_size = 16,
                          .kv_cache_bytes = kv_cache_bytes,
                          .max_num_seqs = 1024,
                          .max_batched_tokens = 4,
                          .max_model_len = 128,
                          .add_outputs = adds_},
                         &store, nullptr);
  }
  bool adds_ = false;  // --combine=added

  static int64_t InUse() { return static_cast<int64_t>(cuda_emulation::MemoryInUse(0)); }
  int64_t BlockBytes() const { return 16 * model::KvBytesPerToken(worker_->config(), worker_->dtype()); }
  // The answer to a prompt of three tokens.
  std::vector<int32_t> Tokens() {
    batching::StepItem item;
    item.num_query = 3;
    item.sample = true;
    item.new_blocks = {0};
    item.init = batching::SlotInit{.tokens = {5, 12, 19}, .num_prompt_tokens = 3, .sampling = {}};
    item.init->sampling.temperature = 0;
    std::vector<int32_t> tokens;
    for (int64_t step = 1; step <= kTokens; ++step) {
      batching::StepPlan head;
      head.step = step;
      batching::RankPlan part;
      part.items = {item};
      const absl::Status started = worker_->Start(head, part, absl::Seconds(60));
      EXPECT_TRUE(started.ok()) << started;
      const auto result = started.ok() ? worker_->Finish() : started;
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      tokens.push_back(result->items[0].tokens[0]);
      item = batching::StepItem();
      item.start_pos = 2 + static_cast<int32_t>(step);
      item.num_query = 1;
      item.sample = true;
    }
    return tokens;
  }

  const Device device_ = TestDevice();
  void* others_ = nullptr;
  std::unique_ptr<Worker> worker_;
};

// But for less than a block and what rounds up its layers' tensors.
TEST_F(WorkerDeviceMemoryTest, TheCacheTakesWhatTheFractionLeaves) {
  constexpr int64_t kSlack = 64 << 10;
  for (const double fraction : {0.8, 0.9, 1.0}) {
    const absl::Status joined = Join(fraction, /*graphs=*/false);
    ASSERT_TRUE(joined.ok()) << joined;
    const auto allowed = static_cast<int64_t>(fraction * static_cast<double>(kCapacity));
    EXPECT_LE(InUse(), allowed) << fraction;
    EXPECT_GT(InUse(), allowed - BlockBytes() - kSlack) << fraction;
    EXPECT_EQ(static_cast<int>(Tokens().size()), kTokens) << "nothing is taken later";
    EXPECT_LE(InUse(), allowed) << fraction;
  }
  worker_.reset();
  EXPECT_EQ(InUse(), 0) << "given back";
}

TEST_F(WorkerDeviceMemoryTest, WhatOthersTakeCounts) {
  constexpr int64_t kOthers = 8 << 20;
  ASSERT_TRUE(Join(0.9, /*graphs=*/false).ok());
  const int32_t alone = worker_->num_kv_blocks();
  worker_.reset();
  TakeByOthers(kOthers);
  ASSERT_TRUE(Join(0.9, /*graphs=*/false).ok());
  EXPECT_NEAR(alone - worker_->num_kv_blocks(), static_cast<double>(kOthers) / static_cast<double>(BlockBytes()), 1);
  EXPECT_LE(InUse(), kCapacity * 9 / 10);
}

TEST_F(WorkerDeviceMemoryTest, ErrorsSayWhatIsInUse) {
  constexpr int64_t kCache = 8 << 20, kOthers = 16 << 20;
  const absl::Status fits = Join(0.9, /*graphs=*/false, kCache);
  EXPECT_TRUE(fits.ok()) << fits;
  worker_.reset();
  TakeByOthers(kOthers);
  const absl::Status cache = Join(0.9, /*graphs=*/false, kCache);
  EXPECT_TRUE(absl::IsResourceExhausted(cache)) << cache;
  EXPECT_THAT(std::string(cache.message()), ContainsRegex("--kv_cache_bytes=8388608: the device has [0-9]+ bytes "
                                                          "available of --gpu_memory_fraction=0.9 of 134217728 bytes, "
                                                          "of which [0-9]+ are in use"));
  worker_.reset();
  const absl::Status weights = Join(0.1, /*graphs=*/false);
  EXPECT_TRUE(absl::IsResourceExhausted(weights)) << weights;
  EXPECT_THAT(std::string(weights.message()),
              HasSubstr("worker has 0 bytes available: --gpu_memory_fraction=0.1 of 134217728 bytes, of which "
                        "16777216 are in use"));
}

// The cache leaves memory for no graph, then for the smallest alone.
TEST_F(WorkerDeviceMemoryTest, GraphsThatDoNotFitDoNotFailTheStart) {
  ASSERT_TRUE(Join(0.9, /*graphs=*/false).ok());
  const int64_t without = InUse();
  const std::vector<int32_t> expected = Tokens();
  ASSERT_EQ(static_cast<int>(expected.size()), kTokens);
  ASSERT_TRUE(Join(0.9, /*graphs=*/true).ok());
  const int64_t all = worker_->graph_counters().captured;
  EXPECT_EQ(all, 3) << "of 1, 2 and 4 rows";
  EXPECT_EQ(worker_->graph_counters().did_not_fit, 0);
  const int64_t one = (InUse() - without) / all;
  for (const int64_t room : {int64_t{0}, one * 3 / 2}) {
    const double fraction = 1 - static_cast<double>(room) / static_cast<double>(kCapacity);
    const absl::Status joined = Join(fraction, /*graphs=*/true);
    ASSERT_TRUE(joined.ok()) << joined;
    const model::GraphCounters counters = worker_->graph_counters();
    EXPECT_EQ(counters.captured, room == 0 ? 0 : 1);
    EXPECT_EQ(counters.did_not_fit, 1);
    EXPECT_EQ(Tokens(), expected);
    EXPECT_EQ(worker_->num_replayed(), room == 0 ? 0 : kTokens - 1);
  }
}

TEST_F(WorkerDeviceMemoryTest, OutputsAreAddedOnCpusAlone) {
  adds_ = true;
  const absl::Status joined = Join(0.9, /*graphs=*/false);
  EXPECT_EQ(joined.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(joined.message()), HasSubstr("--combine=added: for workers on CPUs, this one has cuda:0"));
}

}  // namespace
}  // namespace switchyard::worker
