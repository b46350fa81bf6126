#include "workers/ops/attention/attention.h"

#include <numeric>

#include "tests/reference/attention.h"
#include "tests/workers/ops/op_test_util.h"

namespace switchyard::ops {
namespace {

// A few sequences with their keys, values and queries for all positions, and a way to run any part of them through a
// paged cache of any block size.
struct Scene {
  reference::AttentionCase shape;
  DType dtype;
  std::vector<int64_t> lengths;
  std::vector<Tensor> q, k, v;  // per sequence [length, N*D], [length, Nkv*D]
  Tensor sinks;                 // [1, N], if the shape has any
  KvFormat format;              // of the cache

  Scene(DType type, reference::AttentionCase c, std::vector<int64_t> sizes, KvFormat cached = KvFormat::kPlain)
      : shape(c), dtype(type), lengths(std::move(sizes)), format(cached) {
    shape.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    if (!c.sinks.empty()) sinks = Tensor(AccDType(type), {1, c.heads});
    for (size_t h = 0; h < c.sinks.size(); ++h) Set(sinks, 0, static_cast<int64_t>(h), c.sinks[h]);
    for (size_t s = 0; s < lengths.size(); ++s) {
      const uint32_t seed = static_cast<uint32_t>(10 * s);
      q.push_back(RandomMatrix(dtype, lengths[s], c.heads * c.head_dim, seed, 2.0));
      k.push_back(RandomMatrix(dtype, lengths[s], c.kv_heads * c.head_dim, seed + 1));
      v.push_back(RandomMatrix(dtype, lengths[s], c.kv_heads * c.head_dim, seed + 2));
    }
  }

  AttentionDesc desc() const {
    return {.num_heads = shape.heads,
            .scale = shape.scale,
            .window = static_cast<int32_t>(shape.window),
            .sinks = shape.sinks.empty() ? TensorView() : sinks.view().Reshape({shape.heads})};
  }
};

// The cache is filled with NaN first: nothing that was not written may reach an output.
struct PagedCache {
  Tensor k, v;
  KvFormat format;
  std::vector<std::vector<int32_t>> tables;

  PagedCache(const Scene& scene, int64_t block_size) : format(scene.format) {
    int64_t blocks = 0;
    for (int64_t length : scene.lengths) {
      const int64_t count = (length + block_size - 1) / block_size;
      tables.emplace_back(count);
      for (int32_t& b : tables.back()) b = static_cast<int32_t>(blocks++);
    }
    // Neighbours in a sequence are not neighbours in memory.
    std::vector<int32_t> shuffled(blocks);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(7));
    for (auto& table : tables) {
      for (int32_t& b : table) b = shuffled[b];
    }
    const Shape shape = KvCacheShape(blocks, scene.shape.kv_heads, block_size, scene.shape.head_dim, format);
    const DType held = format == KvFormat::kPlain ? scene.dtype : DType::kU8;
    k = Tensor(held, shape), v = Tensor(held, shape);
    std::memset(k.view().raw(), 0xff, k.bytes());
    std::memset(v.view().raw(), 0xff, v.bytes());
  }
  KvCacheView view() const { return {.k = k, .v = v, .format = format}; }
};

// Rows [begin, begin + count) of a sequence, in one step: write, attend.
TensorView Step(const Scene& scene, const Stream& stream, PagedCache* cache, size_t s, int64_t begin, int64_t count,
                const Tensor& out) {
  const SequenceRows rows = {.row_begin = 0,
                             .num_query = static_cast<int32_t>(count),
                             .start_pos = static_cast<int32_t>(begin),
                             .block_table = cache->tables[s]};
  EXPECT_TRUE(WriteKv(stream, absl::MakeConstSpan(&rows, 1), scene.k[s].view().Rows(begin, count),
                      scene.v[s].view().Rows(begin, count), cache->view())
                  .ok());
  const TensorView to = out.view().Rows(begin, count);
  EXPECT_TRUE(PagedAttention(stream, scene.desc(), absl::MakeConstSpan(&rows, 1), scene.q[s].view().Rows(begin, count),
                             cache->view(), to)
                  .ok());
  return to;
}

// Sequence s in chunks.
Tensor RunChunked(const Scene& scene, const Stream& stream, int64_t block_size, size_t s, int64_t chunk) {
  PagedCache cache(scene, block_size);
  Tensor out(scene.dtype, scene.q[s].shape());
  for (int64_t at = 0; at < scene.lengths[s]; at += chunk) {
    Step(scene, stream, &cache, s, at, std::min(chunk, scene.lengths[s] - at), out);
  }
  return out;
}

double E4m3Value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// What a cache of that format has of a row.
std::vector<double> Cached(const Scene& scene, std::vector<double> row) {
  const auto dim = static_cast<size_t>(scene.shape.head_dim);
  for (size_t h = 0; scene.format != KvFormat::kPlain && h < row.size(); h += dim) {
    const std::vector<float> x(row.begin() + h, row.begin() + h + dim);
    std::vector<uint8_t> numbers(dim);
    const double scale = QuantizeKey(scene.format, x.data(), scene.shape.head_dim, numbers.data());
    for (size_t d = 0; d < dim; ++d) {
      row[h + d] = scale * (scene.format == KvFormat::kInt8 ? static_cast<int8_t>(numbers[d]) : E4m3Value(numbers[d]));
    }
  }
  return row;
}

void ExpectMatchesReference(const Scene& scene, const Tensor& out, size_t s) {
  std::vector<std::vector<double>> k, v;
  for (int64_t i = 0; i < scene.lengths[s]; ++i) {
    k.push_back(Cached(scene, RowOf(scene.k[s], i)));
    v.push_back(Cached(scene, RowOf(scene.v[s], i)));
    ExpectNear(RowOf(out, i), reference::AttendOne(scene.shape, RowOf(scene.q[s], i), k, v, i),
               reference::ReductionTolerance(scene.dtype), "position " + std::to_string(i));
  }
}

class AttentionTest : public OpTest {
 protected:
  // Of caches that there are for this dtype, here.
  std::vector<KvFormat> Formats() {
    if (!stream().device().is_cpu() || dtype() == DType::kF64) return {KvFormat::kPlain};
    return {KvFormat::kPlain, KvFormat::kInt8, KvFormat::kFp8};
  }
};

TEST_P(AttentionTest, MatchesReference) {
  const std::vector<reference::AttentionCase> shapes = {
      {.heads = 1, .kv_heads = 1, .head_dim = 8},   {.heads = 2, .kv_heads = 2, .head_dim = 24},
      {.heads = 6, .kv_heads = 2, .head_dim = 40},  {.heads = 4, .kv_heads = 1, .head_dim = 64},
      {.heads = 2, .kv_heads = 2, .head_dim = 128}, {.heads = 1, .kv_heads = 1, .head_dim = 256},
      {.heads = 3, .kv_heads = 1, .head_dim = 20},  {.heads = 8, .kv_heads = 1, .head_dim = 16},
  };
  for (const KvFormat format : Formats()) {
    for (const reference::AttentionCase& shape : shapes) {
      const Scene scene(dtype(), shape, {70}, format);
      ExpectMatchesReference(scene, RunChunked(scene, stream(), 16, 0, 70), 0);
    }
  }
}

TEST_P(AttentionTest, CachesInEightBitsThatThereAreNot) {
  if (Formats().size() > 1) GTEST_SKIP() << "there are";
  const Scene scene(dtype(), {.heads = 2, .kv_heads = 1, .head_dim = 8}, {4});
  const Tensor bytes(DType::kU8, KvCacheShape(1, 1, 16, 8, KvFormat::kInt8));
  const KvCacheView cache = {.k = bytes, .v = bytes, .format = KvFormat::kInt8};
  const std::vector<int32_t> table = {0};
  const SequenceRows rows = {.num_query = 4, .block_table = table};
  EXPECT_EQ(WriteKv(stream(), absl::MakeConstSpan(&rows, 1), scene.k[0], scene.v[0], cache).code(),
            absl::StatusCode::kUnimplemented);
}

TEST_P(AttentionTest, WindowMatchesReference) {
  for (int64_t window : {1, 5, 64, 100}) {
    const Scene scene(dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 16, .window = window}, {200});
    ExpectMatchesReference(scene, RunChunked(scene, stream(), 16, 0, 200), 0);
  }
}

// Of any sign, far above all scores, and far below them.
const std::vector<double> kSinks = {0.5, -1.25, 3, 40, -60, 0};

TEST_P(AttentionTest, SinksMatchReference) {
  for (int64_t window : {0, 5, 70}) {
    for (int64_t length : {1, 150}) {
      const Scene scene(dtype(), {.heads = 6, .kv_heads = 2, .head_dim = 24, .window = window, .sinks = kSinks},
                        {length});
      ExpectMatchesReference(scene, RunChunked(scene, stream(), 16, 0, 150), 0);
    }
  }
}

TEST_P(AttentionTest, BadSinksAreNamed) {
  const Scene scene(dtype(), {.heads = 2, .kv_heads = 1, .head_dim = 8}, {4});
  const PagedCache cache(scene, 16);
  AttentionDesc desc = scene.desc();
  const Tensor three(acc(), {3}), out(dtype(), {4, 16});
  desc.sinks = three;
  const absl::Status status = PagedAttention(stream(), desc, SequenceBatch(), scene.q[0], cache.view(), out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("sinks"), absl::string_view::npos) << status;
}

TEST_P(AttentionTest, RowsIgnoreChunksBlocksAndThreads) {
  ThreadPool three(3, /*spin=*/false);
  for (const KvFormat format : Formats()) {
    for (const auto& [window, kv_heads] : {std::pair(0, 2), {70, 2}, {70, 6}}) {
      reference::AttentionCase shape = {.heads = 6, .kv_heads = kv_heads, .head_dim = 40, .window = window};
      if (window > 0) shape.sinks = kSinks;
      const Scene scene(dtype(), shape, {261}, format);
      const Tensor whole = RunChunked(scene, stream(), 16, 0, 512);
      for (int64_t chunk : {1, 7, 64, 512}) {
        for (int64_t block_size : {1, 16, 48}) {
          EXPECT_TRUE(SameBits(whole, 0, RunChunked(scene, stream(), block_size, 0, chunk)))
              << KvFormatName(format) << " window " << window << " heads " << kv_heads << " chunk " << chunk
              << " block " << block_size;
        }
        EXPECT_TRUE(SameBits(whole, 0, RunChunked(scene, Stream::OnCpu(&three), 16, 0, chunk))) << "three threads";
      }
    }
  }
}

TEST_P(AttentionTest, EveryChunkLengthGivesTheSameRows) {
  for (const int64_t kv_heads : {1, 2}) {
    const Scene scene(dtype(), {.heads = 2, .kv_heads = kv_heads, .head_dim = 24}, {140});
    const Tensor whole = RunChunked(scene, stream(), 16, 0, 140);
    for (int64_t chunk = 1; chunk < 140; chunk += chunk < 72 ? 1 : 17) {
      ASSERT_TRUE(SameBits(whole, 0, RunChunked(scene, stream(), 16, 0, chunk))) << kv_heads << ", chunk " << chunk;
    }
  }
}

TEST_P(AttentionTest, RowsIgnoreOtherSequences) {
  const Scene scene(dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 128}, {1, 65, 130, 64, 3}, Formats().back());
  std::vector<Tensor> alone;
  for (size_t s = 0; s < 5; ++s) alone.push_back(RunChunked(scene, stream(), 16, s, 512));

  // One step with everything: sequence 2 in its second chunk, a decode, whole prompts, one that sits this step out.
  const std::vector<int64_t> start = {0, 64, 50, 0, 3};
  PagedCache cache(scene, 16);
  std::vector<SequenceRows> rows;
  int64_t total = 0;
  for (size_t s = 0; s < 5; ++s) {
    const Tensor scratch(dtype(), scene.q[s].shape());
    if (start[s] > 0) Step(scene, stream(), &cache, s, 0, start[s], scratch);
    rows.push_back({.row_begin = total,
                    .num_query = static_cast<int32_t>(scene.lengths[s] - start[s]),
                    .start_pos = static_cast<int32_t>(start[s]),
                    .block_table = cache.tables[s]});
    total += rows.back().num_query;
  }
  // q, k and v are column ranges of one fused row, as the model has them.
  const int64_t q_width = 4 * 128, kv_width = 2 * 128;
  const Tensor fused(dtype(), {total, q_width + 2 * kv_width}), out(dtype(), {total, q_width});
  for (size_t s = 0; s < 5; ++s) {
    for (int64_t i = 0; i < rows[s].num_query; ++i) {
      const int64_t from = start[s] + i, to = rows[s].row_begin + i;
      for (int64_t c = 0; c < q_width; ++c) Set(fused, to, c, Get(scene.q[s], from, c));
      for (int64_t c = 0; c < kv_width; ++c) {
        Set(fused, to, q_width + c, Get(scene.k[s], from, c));
        Set(fused, to, q_width + kv_width + c, Get(scene.v[s], from, c));
      }
    }
  }
  const TensorView f = fused;
  const TensorView k = f.Columns(q_width, kv_width), v = f.Columns(q_width + kv_width, kv_width);
  ASSERT_TRUE(WriteKv(stream(), rows, k, v, cache.view()).ok());
  ASSERT_TRUE(PagedAttention(stream(), scene.desc(), rows, f.Columns(0, q_width), cache.view(), out).ok());
  for (size_t s = 0; s < 5; ++s) {
    EXPECT_TRUE(SameBits(alone[s], start[s], out.view().Rows(rows[s].row_begin, rows[s].num_query)))
        << "sequence " << s;
  }
}

TEST_P(AttentionTest, NothingToDoIsFine) {
  const Scene scene(dtype(), {.heads = 2, .kv_heads = 1, .head_dim = 8}, {4});
  const PagedCache cache(scene, 16);
  const Tensor none(dtype(), {0, 16});
  EXPECT_TRUE(PagedAttention(stream(), scene.desc(), SequenceBatch(), none, cache.view(), none).ok());
}

TEST_P(AttentionTest, BadBlockTablesAreNamed) {
  const Scene scene(dtype(), {.heads = 2, .kv_heads = 1, .head_dim = 8}, {20});
  const PagedCache cache(scene, 16);
  const Tensor out(dtype(), {20, 16});
  const std::vector<int32_t> outside = {0, 2};
  SequenceRows rows = {.num_query = 20, .block_table = absl::MakeSpan(outside).first(1)};
  EXPECT_EQ(
      PagedAttention(stream(), scene.desc(), absl::MakeConstSpan(&rows, 1), scene.q[0], cache.view(), out).message(),
      "attention: sequence 0 needs 2 blocks of 16 for 20 positions, has 1");
  rows.block_table = outside;
  EXPECT_EQ(
      PagedAttention(stream(), scene.desc(), absl::MakeConstSpan(&rows, 1), scene.q[0], cache.view(), out).message(),
      "attention: block 2 of sequence 0 is outside [0, 2)");
}

SY_INSTANTIATE_OP_TEST(AttentionTest, kAllDTypes);

}  // namespace
}  // namespace switchyard::ops
