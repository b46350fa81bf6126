// PagedAttention on the test's device against double precision, as a model's layers call it: a step of prompts and
// decodes, the same for layers with a window and without, with sinks and without.
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "tests/reference/attention.h"
#include "tests/workers/ops/op_test_util.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/sampling/device_sequences.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::ops {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 2, kDim = 64, kBlockSize = 16;

struct Layer {
  int32_t window;
  std::vector<double> sinks;  // empty: none
};

// Queries at positions [start, keys).
struct Part {
  int32_t start, keys;
};

class DeviceAttentionTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const Device device = TestDevice();
    if (!device.is_cpu() && RegisteredBackend(device.kind).NumDevices() == 0) GTEST_SKIP() << "skipped: no GPU";
    stream_ = std::make_unique<TestStream>();
    int32_t block = 0;
    for (const Part& part : parts_) {
      std::vector<int32_t>& table = tables_.emplace_back();
      for (int32_t key = 0; key < part.keys; key += kBlockSize) table.push_back(block++);
    }
    const Tensor empty = Tensor::Zeros(dtype(), KvCacheShape(block, kKvHeads, kBlockSize, kDim));
    k_cache_ = *CopyToDevice(stream(), empty);
    v_cache_ = *CopyToDevice(stream(), empty);
    if (device.is_cpu()) return;
    upload_ = *IntUpload::Create(device, DeviceSequences::CountsOf(kLimits));
    on_device_ = *DeviceSequences::Create(device, kLimits);
  }

  DType dtype() const { return GetParam(); }
  const Stream& stream() const { return stream_->get(); }
  KvCacheView cache() const { return {.k = k_cache_, .v = v_cache_}; }

  // The batch of the parts, or of all positions before their ends.
  SequenceBatch BatchOf(bool whole) {
    rows_.clear();
    num_rows_ = 0;
    for (size_t s = 0; s < parts_.size(); ++s) {
      const int32_t start = whole ? 0 : parts_[s].start;
      rows_.push_back(
          {.row_begin = num_rows_, .num_query = parts_[s].keys - start, .start_pos = start, .block_table = tables_[s]});
      num_rows_ += rows_.back().num_query;
    }
    if (TestDevice().is_cpu()) return rows_;
    EXPECT_TRUE(upload_.Begin(stream()).ok());
    EXPECT_TRUE(on_device_.Set(stream(), &upload_, rows_, num_rows_, cache()).ok());
    return SequenceBatch(on_device_.view());
  }
  Tensor Attend(const Layer& layer, const SequenceBatch& batch, const TensorView& q) {
    Tensor out = *CopyToDevice(stream(), Tensor::Zeros(dtype(), q.shape()));
    Tensor sinks;
    if (!layer.sinks.empty()) {
      const Tensor values(AccDType(dtype()), {1, kHeads});
      for (int64_t h = 0; h < kHeads; ++h) Set(values, 0, h, layer.sinks[h]);
      sinks = *CopyToDevice(stream(), values.view().Reshape({kHeads}));
    }
    const AttentionDesc desc = {.num_heads = kHeads,
                                .scale = kScale,
                                .window = layer.window,
                                .sinks = layer.sinks.empty() ? TensorView() : sinks.view()};
    const absl::Status attended = PagedAttention(stream(), desc, batch, q, cache(), out);
    EXPECT_TRUE(attended.ok()) << attended;
    return *CopyToHost(stream(), out);
  }

  static constexpr double kScale = 0.125;
  static constexpr SequenceLimits kLimits = {.sequences = 4, .rows = 600, .blocks = 20};
  // The first chunk of a prompt, a decode with several ranges of keys, a later chunk, a decode of one key.
  const std::vector<Part> parts_ = {{0, 20}, {300, 301}, {30, 35}, {0, 1}};
  std::unique_ptr<TestStream> stream_;
  std::vector<std::vector<int32_t>> tables_;
  Tensor k_cache_, v_cache_;
  IntUpload upload_;
  DeviceSequences on_device_;
  std::vector<SequenceRows> rows_;
  int64_t num_rows_ = 0;
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceAttentionTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& i) { return std::string(DTypeName(i.param)); });

TEST_P(DeviceAttentionTest, LayersOfOneStepDifferInWindowAndSinks) {
  const SequenceBatch whole = BatchOf(true);
  const Tensor k = RandomMatrix(dtype(), num_rows_, kKvHeads * kDim, 1);
  const Tensor v = RandomMatrix(dtype(), num_rows_, kKvHeads * kDim, 2);
  const Tensor k_there = *CopyToDevice(stream(), k), v_there = *CopyToDevice(stream(), v);
  ASSERT_TRUE(WriteKv(stream(), whole, k_there, v_there, cache()).ok());
  ASSERT_TRUE(Synchronize(stream()).ok());

  const SequenceBatch step = BatchOf(false);
  const Tensor q = RandomMatrix(dtype(), num_rows_, kHeads * kDim, 3, 2.0);
  const Tensor q_there = *CopyToDevice(stream(), q);
  const std::vector<double> some = {0.5, 3, -1.25, 8, -60, 1.5, 40, 0}, others = {2, 9, 8, 0, 7, 1, 3, -2};
  const std::vector<Layer> layers = {{7, some}, {0, others}, {7, others}, {0, some}, {40, {}}};
  for (size_t i = 0; i < layers.size(); ++i) {
    const Tensor out = Attend(layers[i], step, q_there);
    const reference::AttentionCase shape = {.heads = kHeads,
                                            .kv_heads = kKvHeads,
                                            .head_dim = kDim,
                                            .window = layers[i].window,
                                            .scale = kScale,
                                            .sinks = layers[i].sinks};
    int64_t row = 0, first_key = 0;
    for (const Part& part : parts_) {
      std::vector<std::vector<double>> keys, values;
      for (int32_t pos = 0; pos < part.keys; ++pos) {
        keys.push_back(RowOf(k, first_key + pos)), values.push_back(RowOf(v, first_key + pos));
      }
      for (int32_t pos = part.start; pos < part.keys; ++pos, ++row) {
        ExpectNear(RowOf(out, row), reference::AttendOne(shape, RowOf(q, row), keys, values, pos),
                   reference::ReductionTolerance(dtype()), absl::StrCat("layer ", i, " position ", pos));
      }
      first_key += part.keys;
    }
  }
}

TEST_P(DeviceAttentionTest, SinksThatDoNotFitAreNamed) {
  const SequenceBatch step = BatchOf(false);
  const Tensor q = *CopyToDevice(stream(), Tensor::Zeros(dtype(), {num_rows_, kHeads * kDim}));
  const Tensor seven = *CopyToDevice(stream(), Tensor::Zeros(AccDType(dtype()), {7}));
  const AttentionDesc desc = {.num_heads = kHeads, .scale = kScale, .sinks = seven};
  const absl::Status status = PagedAttention(stream(), desc, step, q, cache(), q);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().find("attention: sinks must be"), 0u) << status;
}

}  // namespace
}  // namespace switchyard::ops
