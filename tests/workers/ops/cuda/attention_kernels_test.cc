// cuda::Attention against double precision, and what a row's bits may not depend on.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference/attention.h"
#include "tests/workers/ops/cuda/paged_scene.h"
#include "workers/ops/cuda/attention_decode_cuda.h"

namespace switchyard::ops {
namespace {

// How q and out lie in memory.
struct RowLayout {
  int64_t pad = 0;
  int64_t shift = 0;  // elements
};

double ScaleOf(const SceneShape& shape) { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }

// All rows of the batch, padding included; rows that are not computed are poison.
Tensor Attend(const CudaCall& call, const PagedScene& scene, const RowLayout& layout = {}) {
  const SceneShape& shape = scene.shape();
  const Tensor rows = scene.BatchRows(0);
  const int64_t width = shape.heads * shape.head_dim, elem_bytes = DTypeBytes(shape.dtype);
  const DeviceMatrix q(rows.view(), width + layout.pad, layout.shift * elem_bytes);
  const DeviceMatrix out(shape.dtype, rows.dim(0), width, width + layout.pad, layout.shift * elem_bytes);
  std::optional<DeviceMatrix> sinks;
  if (!shape.sinks.empty()) {
    const Tensor values(AccDType(shape.dtype), {1, shape.heads});
    for (int64_t h = 0; h < shape.heads; ++h) Set(values, 0, h, shape.sinks[h]);
    sinks.emplace(values.view());
  }
  const CudaAttentionArgs args = {.dtype = static_cast<uint8_t>(shape.dtype),
                                  .sequences = scene.device(),
                                  .q = q.get(),
                                  .out = out.get(),
                                  .q_stride = q.stride(),
                                  .out_stride = out.stride(),
                                  .k_cache = scene.k_cache(),
                                  .v_cache = scene.v_cache(),
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .block_size = shape.block_size,
                                  .head_dim = shape.head_dim,
                                  .window = shape.window,
                                  .scale = ScaleOf(shape),
                                  .sinks = sinks.has_value() ? sinks->get() : nullptr};
  EXPECT_EQ(cuda::Attention(call, args), 0);
  return out.Download();
}

void ExpectMatchesReference(const PagedScene& scene, const Tensor& out, const std::string& where) {
  const SceneShape& shape = scene.shape();
  const reference::AttentionCase reference_case = {.heads = shape.heads,
                                                   .kv_heads = shape.kv_heads,
                                                   .head_dim = shape.head_dim,
                                                   .window = shape.window,
                                                   .scale = ScaleOf(shape),
                                                   .sinks = shape.sinks};
  const Tensor q = scene.BatchRows(0);
  int64_t row = 0;
  for (const SceneSequence& s : scene.sequences()) {
    std::vector<std::vector<double>> k, v;
    const int64_t keys = s.start + s.queries, width = shape.kv_heads * shape.head_dim;
    if (s.queries == 0) continue;
    const Tensor k_rows = TokenRows(shape.dtype, s.seed, 1, 0, keys, width);
    const Tensor v_rows = TokenRows(shape.dtype, s.seed, 2, 0, keys, width);
    for (int64_t i = 0; i < keys; ++i) {
      k.push_back(RowOf(k_rows, i)), v.push_back(RowOf(v_rows, i));
      if (i < s.start) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectNear(RowOf(out, row), reference::AttendOne(reference_case, RowOf(q, row), k, v, i),
                                         reference::ReductionTolerance(shape.dtype),
                                         absl::StrCat(where, ": ", shape.Name(), " position ", i)));
      ++row;
    }
  }
}

// About as much as some keys' scores, of either sign, far above all of them and far below.
std::vector<double> SomeSinks(int64_t heads) {
  const double values[] = {0.5, 3, -1.25, 2, -60, 1.5, 40, 0};
  std::vector<double> sinks;
  for (int64_t h = 0; h < heads; ++h) sinks.push_back(values[h % 8]);
  return sinks;
}

Tensor Slice(const Tensor& all, int64_t begin, int64_t count) { return Copy(all.view().Rows(begin, count)); }

class AttentionKernelsTest : public KernelTest {
 protected:
  SceneShape Shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t window = 0) const {
    return {.dtype = dtype(),
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .block_size = block_size,
            .window = window};
  }
  // In both modes; the kernel of fp32 and fp64 knows none.
  void Check(const SceneShape& shape, const std::vector<SceneSequence>& sequences, const ScenePadding& padding = {},
             const RowLayout& layout = {}) {
    const PagedScene scene(shape, sequences, padding);
    for (bool deterministic : {true, false}) {
      if (deterministic && DTypeBytes(shape.dtype) > 2) continue;
      ExpectMatchesReference(scene, Attend(Call(deterministic), scene, layout),
                             deterministic ? "deterministic" : "fast");
    }
  }
  CudaCall Call(bool deterministic) const {
    CudaCall call = KernelTest::call();
    call.deterministic = deterministic;
    return call;
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionKernelsTest, testing::ValuesIn(kAllDTypes), KernelTestName);

TEST_P(AttentionKernelsTest, ShapesMatchReference) {
  Check(Shape(1, 1, 64, 16), {{0, 70}});
  Check(Shape(2, 2, 24, 1), {{0, 9, 1}, {40, 1, 2}});
  Check(Shape(4, 1, 128, 8), {{3, 5, 1}, {130, 1, 2}, {63, 2, 3}});
  Check(Shape(8, 1, 64, 24), {{0, 20, 1}, {64, 1, 2}, {62, 3, 3}});
  Check(Shape(6, 2, 40, 16), {{10, 23, 1}, {0, 1, 2}});
  Check(Shape(2, 1, 256, 8), {{60, 6, 1}, {70, 1, 2}});
}

// Head dims that no tensor core takes, rows that are not aligned, and a group of more heads than an mma has rows.
TEST_P(AttentionKernelsTest, OddShapesMatchReference) {
  Check(Shape(3, 1, 20, 16), {{5, 4, 1}, {66, 1, 2}});
  Check(Shape(2, 1, 64, 16), {{5, 4, 1}, {66, 1, 2}}, {}, {.pad = 3, .shift = 1});
  Check(Shape(2, 1, 64, 16), {{5, 4, 1}, {66, 1, 2}}, {}, {.pad = 8});
  Check(Shape(20, 1, 64, 16), {{30, 1, 1}, {3, 8, 2}});
}

TEST_P(AttentionKernelsTest, WindowsMatchReference) {
  for (int64_t window : {1, 5, 64, 100}) {
    Check(Shape(4, 2, 64, 8, window), {{0, 40, 1}, {150, 1, 2}, {126, 4, 3}, {130, 40, 4}});
  }
}

// Around tiles of keys, of queries and blocks of rows.
TEST_P(AttentionKernelsTest, BoundariesMatchReference) {
  for (int32_t keys : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    Check(Shape(2, 1, 64, 16), {{keys - 1, 1, 1}, {keys, 2, 2}});
  }
  Check(Shape(1, 1, 24, 16), {{0, kCudaQueryTile - 1, 1}, {1, kCudaQueryTile, 2}, {0, kCudaQueryTile + 1, 3}});
  Check(Shape(8, 1, 24, 16), {{7, 33}});
}

// Several splits of keys, and one at the edge of having another.
TEST_P(AttentionKernelsTest, LongDecodesMatchReference) {
  for (int32_t keys : {256, 257, 700, 2049}) Check(Shape(2, 1, 24, 16), {{keys - 1, 1, 1}});
  Check(Shape(4, 1, 128, 16), {{400, 1, 1}, {5, 1, 2}, {128, 1, 3}});
  Check(Shape(2, 1, 64, 16, 300), {{600, 1, 1}});
}

// Every kernel: one with splits, prompts, those that no tensor core takes; a group of more heads than an mma has rows.
TEST_P(AttentionKernelsTest, SinksMatchReference) {
  const auto check = [&](SceneShape shape, const std::vector<SceneSequence>& sequences, const RowLayout& layout = {}) {
    shape.sinks = SomeSinks(shape.heads);
    Check(shape, sequences, {}, layout);
  };
  for (int64_t window : {0, 5, 100}) {
    check(Shape(8, 2, 64, 8, window), {{0, 30, 1}, {150, 1, 2}, {126, 4, 3}, {0, 1, 4}});
  }
  check(Shape(4, 1, 128, 8), {{3, 5, 1}, {130, 1, 2}});
  check(Shape(2, 1, 256, 8), {{60, 6, 1}, {70, 1, 2}});
  check(Shape(6, 2, 40, 16), {{10, 23, 1}, {0, 1, 2}});
  check(Shape(20, 1, 64, 16), {{30, 1, 1}, {3, 8, 2}});
  check(Shape(3, 1, 20, 16), {{5, 4, 1}, {66, 1, 2}});
  check(Shape(2, 1, 64, 16), {{5, 4, 1}, {66, 1, 2}}, {.pad = 3, .shift = 1});
  check(Shape(1, 1, 24, 16), {{1, kCudaQueryTile + 1, 1}});
}

// Where a row's keys are split, its sink weighs about as much as they all, so that one for each split would be seen.
TEST_P(AttentionKernelsTest, SinksCountOnceInLongDecodes) {
  for (int64_t window : {0, 300}) {
    SceneShape shape = Shape(4, 2, 24, 16, window);
    shape.sinks = {9, 8, 7, 10};
    Check(shape, {{700, 1, 1}, {5, 1, 2}, {600, 2, 3}});
  }
}

// Floats end at e^88: no weight is left for the keys, or none for the sink.
TEST_P(AttentionKernelsTest, SinksBeyondFloatsAreAllOrNothing) {
  const std::vector<SceneSequence> sequences = {{0, 3, 1}, {200, 1, 2}, {600, 1, 3}};
  SceneShape shape = Shape(2, 1, 64, 16);
  for (bool deterministic : {true, false}) {
    const Tensor plain = Attend(Call(deterministic), PagedScene(shape, sequences));
    shape.sinks = {1e30, -1e30};
    const Tensor out = Attend(Call(deterministic), PagedScene(shape, sequences));
    for (int64_t row = 0; row < out.dim(0); ++row) {
      EXPECT_EQ(RowOf(out.view().Columns(0, 64), row), std::vector<double>(64, 0.0)) << "row " << row;
      EXPECT_EQ(RowOf(out.view().Columns(64, 64), row), RowOf(plain.view().Columns(64, 64), row)) << "row " << row;
    }
    shape.sinks.clear();
  }
}

TEST_P(AttentionKernelsTest, EmptyBatch) {
  const PagedScene scene(Shape(2, 1, 64, 16), {});
  EXPECT_EQ(Attend(Call(false), scene).dim(0), 0);
  EXPECT_EQ(Attend(Call(true), scene).dim(0), 0);
}

// A graph is captured with bounds; a step then has less than that.
TEST_P(AttentionKernelsTest, WhatIsNotThereIsLeftAlone) {
  const ScenePadding padding = {.rows = 3, .sequences = 2, .decodes = 3, .tiles = 2, .keys = 5000};
  const PagedScene scene(Shape(4, 2, 64, 16), {{20, 6, 1}, {9, 0, 4}, {150, 1, 2}}, padding);
  for (bool deterministic : {true, false}) {
    const Tensor out = Attend(Call(deterministic), scene);
    ExpectMatchesReference(scene, out, "padded");
    const std::vector<unsigned char> poison(out.view().row_stride() * DTypeBytes(dtype()), kPoison);
    for (int64_t row = scene.num_rows(); row < out.dim(0); ++row) {
      EXPECT_EQ(std::memcmp(Slice(out, row, 1).view().raw(), poison.data(), poison.size()), 0) << "row " << row;
    }
  }
}

// More decodes than the workspace has room for: they go in turns.
TEST_P(AttentionKernelsTest, MoreDecodesThanTheWorkspaceHolds) {
  const SceneShape shape = Shape(64, 4, 256, 16);
  const ScenePadding padding = {.decodes = 97, .keys = 2000};
  const int64_t row_bytes = cuda::PartialLayout(1, shape.heads, cuda::kMaxSplits, shape.head_dim).bytes;
  ASSERT_LT(kCudaWorkspaceBytes / row_bytes, 98);
  const CudaCallForTest whole(kCudaWorkspaceBytes);
  CudaCall call = whole.get();
  call.deterministic = false;
  const PagedScene scene(shape, {{200, 1, 1}, {130, 1, 2}}, padding);
  ExpectMatchesReference(scene, Attend(call, scene), "in turns");
}

// Neither other sequences, nor a graph's bounds, nor blocks change a row.
TEST_P(AttentionKernelsTest, RowsIgnoreOtherRows) {
  const std::vector<SceneSequence> all = {{0, 30, 1}, {300, 1, 2}, {0, 1, 3}, {61, 9, 4}, {520, 1, 5}};
  SceneShape shape = Shape(4, 2, 64, 16);
  shape.sinks = SomeSinks(4);
  SceneShape small_blocks = shape;
  small_blocks.block_size = 3;
  for (bool deterministic : {true, false}) {
    const Tensor together = Attend(Call(deterministic), PagedScene(shape, all, {.decodes = 2, .keys = 3000}));
    int64_t row = 0;
    for (const SceneSequence& s : all) {
      EXPECT_TRUE(SameBits(together, row, Attend(Call(deterministic), PagedScene(shape, {s})))) << "row " << row;
      EXPECT_TRUE(SameBits(together, row, Attend(Call(deterministic), PagedScene(small_blocks, {s})))) << row;
      row += s.queries;
    }
  }
}

// A prompt in one step, in chunks, and token by token (as decodes): a preempted request recomputes the same values.
TEST_P(AttentionKernelsTest, DeterministicRowsIgnoreChunks) {
  for (int64_t window : {0, 20}) {
    SceneShape shape = Shape(4, 1, 64, 16, window);
    if (window > 0) shape.sinks = SomeSinks(4);
    const Tensor whole = Attend(Call(true), PagedScene(shape, {{0, 140, 1}}));
    for (const auto& [start, queries] : std::vector<std::pair<int, int>>{
             {0, 1}, {1, 1}, {63, 1}, {64, 1}, {65, 1}, {139, 1}, {40, 100}, {129, 11}, {0, 65}, {31, 33}}) {
      const Tensor part = Attend(Call(true), PagedScene(shape, {{start, queries, 1}}));
      EXPECT_TRUE(SameBits(whole, start, part)) << "window " << window << " start " << start << " queries " << queries;
    }
  }
}

// The same across fixed splits of keys: in a step's rows some see a split that others do not.
TEST_P(AttentionKernelsTest, DeterministicRowsIgnoreChunksAcrossSplits) {
  if (DTypeBytes(dtype()) > 2) return;  // their kernel has no splits
  const int start = 2 * cuda::kFixedSplitKeys - 20, queries = 50;
  for (int64_t window : {int64_t{0}, int64_t{cuda::kFixedSplitKeys + 10}}) {
    SceneShape shape = Shape(4, 2, 128, 16, window);
    shape.sinks = {9, 3, 10, -60};
    const PagedScene scene(shape, {{start, queries, 1}});
    const Tensor whole = Attend(Call(true), scene);
    ExpectMatchesReference(scene, whole, "whole");
    for (const auto& [first, count] : std::vector<std::pair<int, int>>{
             {0, 1}, {19, 1}, {20, 1}, {21, 1}, {31, 1}, {49, 1}, {0, 20}, {5, 40}, {20, 30}}) {
      const Tensor part = Attend(Call(true), PagedScene(shape, {{start + first, count, 1}}));
      EXPECT_TRUE(SameBits(whole, first, part)) << "window " << window << " row " << first << " of " << count;
    }
  }
}

// Blocks that take splits in turns, and one for all of a row's splits where the workspace cannot hold their sums.
TEST_P(AttentionKernelsTest, DeterministicDecodesIgnoreTheLaunchShape) {
  if (DTypeBytes(dtype()) > 2) return;  // their kernel has no splits
  SceneShape shape = Shape(8, 1, 24, 16);
  shape.sinks = {9, 3, 10, -60, 9, 0, 12, 11};
  const std::vector<SceneSequence> sequences = {{(cuda::kMaxSplits + 2) * cuda::kFixedSplitKeys + 5, 1, 1},
                                                {cuda::kFixedSplitKeys - 1, 1, 2},
                                                {cuda::kFixedSplitKeys, 1, 3}};
  const CudaCallForTest whole(kCudaWorkspaceBytes);
  const CudaCall& call = whole.get();
  const PagedScene few(shape, sequences), many(shape, sequences, {.decodes = 4 * call.num_sms});
  const PagedScene huge(shape, sequences, {.keys = 1 << 30});
  const int bound = cuda::MaxFixedSplits(huge.device().max_keys, 0);
  ASSERT_GT(cuda::PartialLayout(1, shape.heads, bound, shape.head_dim).bytes, kCudaWorkspaceBytes);
  const Tensor out = Attend(call, few), in_turns = Attend(call, many), one_block = Attend(call, huge);
  ExpectMatchesReference(few, out, "few");
  for (int64_t row = 0; row < few.num_rows(); ++row) {
    EXPECT_TRUE(SameBits(out, row, Slice(in_turns, row, 1))) << "in turns, row " << row;
    EXPECT_TRUE(SameBits(out, row, Slice(one_block, row, 1))) << "one block, row " << row;
  }
}

// Chunks of prompts do not depend on chunking in the fast mode, either.
TEST_P(AttentionKernelsTest, FastChunksIgnoreChunks) {
  const SceneShape shape = Shape(2, 1, 24, 16);
  const Tensor whole = Attend(Call(false), PagedScene(shape, {{0, 100, 1}}));
  for (const auto& [start, queries] : std::vector<std::pair<int, int>>{{0, 2}, {62, 4}, {33, 67}}) {
    EXPECT_TRUE(SameBits(whole, start, Attend(Call(false), PagedScene(shape, {{start, queries, 1}})))) << start;
  }
}

TEST(AttentionSplitsTest, CoverAllKeysWithinTheBound) {
  for (int keys = 1; keys < 40000; keys += keys < 3000 ? 1 : 97) {
    const int splits = cuda::KeySplits(0, keys, /*fixed=*/false).count(), size = cuda::SplitKeys(keys);
    ASSERT_GE(splits * size, keys);
    ASSERT_LT((splits - 1) * size, keys) << "an empty split";
    ASSERT_EQ(size % cuda::kSplitStep, 0);
    ASSERT_LE(splits, cuda::MaxSplits(keys));
    ASSERT_LE(splits, cuda::MaxSplits(keys + 1000)) << "a bound larger than need be";
  }
  EXPECT_EQ(cuda::MaxSplits(0), 1);
  EXPECT_EQ(cuda::MaxSplits(1 << 20), cuda::kMaxSplits);
}

TEST(AttentionSplitsTest, FixedSplitsBeginAtMultiplesOfTheirSize) {
  constexpr int kSize = cuda::kFixedSplitKeys;
  for (int window : {0, 1, 300, kSize, kSize + 1, 5 * kSize}) {
    for (int end = 1; end < 8 * kSize; end += 37) {
      const int first = window > 0 && end > window ? end - window : 0;
      const cuda::KeySplits splits(first, end, /*fixed=*/true);
      ASSERT_LE(splits.count(), cuda::MaxFixedSplits(end, window)) << end << " window " << window;
      ASSERT_EQ(splits.begin(0), first);
      ASSERT_EQ(splits.end(splits.count() - 1), end);
      for (int i = 1; i < splits.count(); ++i) {
        ASSERT_EQ(splits.begin(i) % kSize, 0);
        ASSERT_EQ(splits.begin(i), splits.end(i - 1));
      }
    }
  }
  EXPECT_EQ(cuda::MaxFixedSplits(0, 0), 1);
  EXPECT_EQ(cuda::MaxFixedSplits(1 << 20, 2), 2);
}

// One long sequence uses the whole device; a graph's bound on keys makes no grid of mostly idle blocks.
TEST(AttentionSplitsTest, FixedSplitsFillTheDevice) {
  constexpr int kKvHeads = 4, kSms = 132, kKeys = 32 << 10;
  const int splits = cuda::KeySplits(0, kKeys, /*fixed=*/true).count();
  EXPECT_GE(kKvHeads * cuda::FixedSplitBlocks(splits, kKvHeads, kSms), kSms);
  EXPECT_EQ(cuda::FixedSplitBlocks(splits, kKvHeads, kSms), 64);
  EXPECT_EQ(cuda::FixedSplitBlocks(splits, 256 * kKvHeads, kSms), cuda::kMaxSplits);
  EXPECT_EQ(cuda::FixedSplitBlocks(3, 256 * kKvHeads, kSms), 3);
}

}  // namespace
}  // namespace switchyard::ops
