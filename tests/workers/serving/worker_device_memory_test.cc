// A worker, without its network, on an emulated device with little memory: what it takes stays within
// --gpu_memory_fraction, others' part included.
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
                          .max_model_len = 128},
                         &store, nullptr);
  }
  int64_t BlockBytes() const { return 16 * model::KvBytesPerToken(worker_->config(), worker_->dtype()); }

  const Device device_ = TestDevice();
  void* others_ = nullptr;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerDeviceMemoryTest, WhatOthersTakeCounts) {
  constexpr int64_t kOthers = 8 << 20;
  ASSERT_TRUE(Join(0.9, /*graphs=*/false).ok());
  const int32_t alone = worker_->num_kv_blocks();
  worker_.reset();
  TakeByOthers(kOthers);
  ASSERT_TRUE(Join(0.9, /*graphs=*/false).ok());
  EXPECT_NEAR(alone - worker_->num_kv_blocks(), static_cast<double>(kOthers) / static_cast<double>(BlockBytes()), 1);
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

}  // namespace
}  // namespace switchyard::worker
