// Attention over a paged cache, and the op in front of it, at Qwen3-30B-A3B's heads.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/parts.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/rope/qkv.h"
#include "workers/ops/sampling/device_sequences.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

struct Heads {
  int64_t q = 0, kv = 0, dim = 0, block_size = 16;
  int64_t q_width() const { return q * dim; }
  int64_t kv_width() const { return kv * dim; }
  int64_t width() const { return q_width() + 2 * kv_width(); }
};

// `sequences` of `num_query` rows behind `before` keys each; blocks in falling order, so that tables are no ranges.
struct Scene {
  std::string name;
  int64_t sequences = 0, num_query = 0, before = 0;
  int64_t rows() const { return sequences * num_query; }
  int64_t keys() const { return before + num_query; }
  int64_t blocks_each(int64_t block_size) const { return (keys() + block_size - 1) / block_size; }
};

struct PlacedSequences {
  std::vector<std::vector<int32_t>> tables;
  std::vector<ops::SequenceRows> sequences;
};

PlacedSequences MakeBatch(const Scene& scene, int64_t block_size) {
  PlacedSequences batch;
  int32_t block = static_cast<int32_t>(scene.sequences * scene.blocks_each(block_size));
  for (int64_t s = 0; s < scene.sequences; ++s) {
    std::vector<int32_t> table(scene.blocks_each(block_size));
    for (int32_t& entry : table) entry = --block;
    batch.tables.push_back(std::move(table));
  }
  for (int64_t s = 0; s < scene.sequences; ++s) {
    batch.sequences.push_back({.row_begin = s * scene.num_query,
                               .num_query = static_cast<int32_t>(scene.num_query),
                               .start_pos = static_cast<int32_t>(scene.before),
                               .block_table = batch.tables[s]});
  }
  return batch;
}

// The batch in the device's memory.
struct DeviceBatch {
  IntUpload numbers;
  ops::DeviceSequences known;
};

absl::StatusOr<DeviceBatch> SendBatch(const Bench& bench, const Scene& scene, int64_t block_size,
                                      const PlacedSequences& batch, const ops::KvCacheView& cache) {
  const Device device = bench.stream().device();
  const ops::SequenceLimits limits = {
      .sequences = scene.sequences, .rows = scene.rows(), .blocks = scene.blocks_each(block_size)};
  DeviceBatch sent;
  ASSIGN_OR_RETURN(sent.numbers, IntUpload::Create(device, ops::DeviceSequences::CountsOf(limits)));
  ASSIGN_OR_RETURN(sent.known, ops::DeviceSequences::Create(device, limits));
  RETURN_IF_ERROR(sent.numbers.Begin(bench.stream()));
  RETURN_IF_ERROR(sent.known.Set(bench.stream(), &sent.numbers, batch.sequences, scene.rows(), cache));
  return sent;
}

// Keys and values: the same numbers on host and device.
struct Cache {
  Tensor k, v;
  Shape shape;
  ops::KvCacheView view() const { return {k.view().Reshape(shape), v.view().Reshape(shape)}; }
};

Cache HostCache(const Bench& bench, const Shape& shape, uint64_t key) {
  const int64_t rows = shape[0] * shape[1] * shape[2];
  return {bench.OnHost(2 * key, DType::kBf16, rows, shape[3]), bench.OnHost(2 * key + 1, DType::kBf16, rows, shape[3]),
          shape};
}

absl::StatusOr<Cache> DeviceCache(const Bench& bench, const Shape& shape, uint64_t key) {
  const Cache host = HostCache(bench, shape, key);
  Cache cache;
  cache.shape = shape;
  ASSIGN_OR_RETURN(cache.k, CopyToDevice(bench.stream(), host.k));
  ASSIGN_OR_RETURN(cache.v, CopyToDevice(bench.stream(), host.v));
  return cache;
}

// Sampled rows one by one, as decodes of the CPU's op over the same cache: a row's keys are the same either way.
absl::Status CheckAttention(const Bench& bench, const Scene& scene, const Heads& heads, const ops::AttentionDesc& desc,
                            const Shape& cache_shape, const TensorView& out) {
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench.stream(), out));
  const Cache cache = HostCache(bench, cache_shape, 0);
  const PlacedSequences batch = MakeBatch(scene, heads.block_size);
  const TensorView q = bench.Window(1000, scene.rows(), heads.q_width());
  const Tensor want(DType::kBf16, {1, heads.q_width()});
  Difference difference;
  for (const int64_t row : SampledRows(scene.rows(), 4)) {
    const ops::SequenceRows& sequence = batch.sequences[row / scene.num_query];
    const std::vector<ops::SequenceRows> one = {
        {.row_begin = 0,
         .num_query = 1,
         .start_pos = static_cast<int32_t>(scene.before + row % scene.num_query),
         .block_table = sequence.block_table}};
    RETURN_IF_ERROR(ops::PagedAttention(bench.cpu(), desc, one, q.Rows(row, 1), cache.view(), want));
    difference.AddRow(got.view().Rows(row, 1), want, 0);
  }
  return difference.Check(absl::StrCat("attention ", scene.name), kBf16Limit);
}

absl::Status BenchScene(Bench* bench, const Scene& scene, const Heads& heads) {
  // Rows of numbers within ±1/4 have small products: by this scale some keys count much more than others.
  const ops::AttentionDesc desc = {.num_heads = heads.q, .scale = 10};
  const int64_t blocks = scene.sequences * scene.blocks_each(heads.block_size);
  const Shape cache_shape = ops::KvCacheShape(blocks, heads.kv, heads.block_size, heads.dim);
  const int64_t kv_bytes = 2 * 2 * scene.sequences * scene.keys() * heads.kv_width();
  const int64_t row_bytes = 2 * 2 * scene.rows() * heads.q_width();
  const int sets = bench->Sets(kv_bytes + row_bytes);
  std::vector<Cache> caches(sets);
  std::vector<Tensor> q(sets), out(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(caches[i], DeviceCache(*bench, cache_shape, i));
    ASSIGN_OR_RETURN(q[i], bench->OnDevice(1000 + i, DType::kBf16, scene.rows(), heads.q_width()));
    ASSIGN_OR_RETURN(out[i], Tensor::Allocate(DType::kBf16, {scene.rows(), heads.q_width()}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(out[i]));
  }
  const PlacedSequences batch = MakeBatch(scene, heads.block_size);
  DeviceBatch sequences;
  ASSIGN_OR_RETURN(sequences, SendBatch(*bench, scene, heads.block_size, batch, caches[0].view()));
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::PagedAttention(bench->stream(), desc, ops::SequenceBatch(sequences.known.view()), q[i],
                               caches[i].view(), out[i]);
  }));
  RETURN_IF_ERROR(CheckAttention(*bench, scene, heads, desc, cache_shape, out[0]));
  const double pairs = static_cast<double>(scene.rows()) *
                       (static_cast<double>(scene.before) + static_cast<double>(scene.num_query + 1) / 2);
  bench->Emit({{"kind", "op"},
               {"op", absl::StrCat("attention ", scene.name)},
               {"shape", absl::StrCat("B=", scene.sequences, " rows=", scene.num_query, " keys=", scene.keys())},
               {"bytes", static_cast<double>(kv_bytes + row_bytes)},
               {"flops", 4.0 * pairs * static_cast<double>(heads.q_width())}},
              timing);
  return absl::OkStatus();
}

std::vector<int32_t> Positions(const Scene& scene) {
  std::vector<int32_t> positions(scene.rows());
  for (int64_t i = 0; i < scene.rows(); ++i) positions[i] = static_cast<int32_t>(scene.before + i % scene.num_query);
  return positions;
}

ops::RopeConfig RopeOf(const Heads& heads) { return {.theta = 1e6, .rotary_dim = heads.dim}; }
constexpr uint64_t kGammaKey = 77;

// Rows made from Window(0) and the values in the cache, against the CPU's op.
absl::Status CheckQkv(const Bench& bench, const Scene& scene, const Heads& heads, const TensorView& got,
                      const TensorView& values) {
  ops::RopeTable table;
  ASSIGN_OR_RETURN(table, ops::RopeTable::Build(RopeOf(heads), scene.keys(), DType::kF32));
  const Tensor gamma = bench.OnHost(kGammaKey, DType::kBf16, 1, heads.dim);
  ops::QkvDesc desc = {.num_heads = heads.q, .num_kv_heads = heads.kv, .head_dim = heads.dim};
  desc.q_norm = desc.k_norm = gamma.view().Reshape({heads.dim});
  const PlacedSequences batch = MakeBatch(scene, heads.block_size);
  const std::vector<int32_t> positions = Positions(scene);
  const Tensor want = bench.OnHost(0, DType::kBf16, scene.rows(), heads.width());
  const int64_t first_value = heads.q_width() + heads.kv_width();
  Difference difference, cached;
  for (const int64_t row : SampledRows(scene.rows(), 5)) {
    RETURN_IF_ERROR(
        ops::PrepareQkv(bench.cpu(), desc, table, IntView(positions).Part(row, 1), want.view().Rows(row, 1)));
    difference.AddRow(got, want, row);
    const int64_t block = batch.tables[row / scene.num_query][positions[row] / heads.block_size];
    for (int64_t i = 0; i < heads.kv_width(); ++i) {
      const int64_t head = i / heads.dim;
      const int64_t at = (block * heads.kv + head) * heads.block_size + positions[row] % heads.block_size;
      cached.Add(ValueAt(values, at, i % heads.dim), ValueAt(want, row, first_value + i));
    }
  }
  RETURN_IF_ERROR(difference.Check("qkv", kBf16Limit));
  return cached.Check("qkv: cached values", 0);
}

// Norms of q and k, rotation, keys and values into the cache.
absl::Status BenchQkv(Bench* bench, const Scene& scene, const Heads& heads) {
  const int64_t rows = scene.rows();
  ops::RopeTable table;
  ASSIGN_OR_RETURN(table, ops::RopeTable::Build(RopeOf(heads), scene.keys(), DType::kF32));
  RETURN_IF_ERROR(table.MoveTo(bench->stream()));
  Tensor gamma;
  ASSIGN_OR_RETURN(gamma, bench->OnDevice(kGammaKey, DType::kBf16, 1, heads.dim));
  ops::QkvDesc desc = {.num_heads = heads.q, .num_kv_heads = heads.kv, .head_dim = heads.dim};
  desc.q_norm = desc.k_norm = gamma.view().Reshape({heads.dim});
  std::vector<int32_t> positions = Positions(scene);
  Tensor positions_there;
  ASSIGN_OR_RETURN(positions_there, CopyToDevice(bench->stream(), TensorView(positions.data(), DType::kI32, {rows})));

  const PlacedSequences batch = MakeBatch(scene, heads.block_size);
  const Shape cache_shape =
      ops::KvCacheShape(scene.sequences * scene.blocks_each(heads.block_size), heads.kv, heads.block_size, heads.dim);
  Cache cache;
  ASSIGN_OR_RETURN(cache, DeviceCache(*bench, cache_shape, 0));
  RETURN_IF_ERROR(bench->Poison(cache.v));
  const int sets = bench->Sets(2 * rows * heads.width());
  std::vector<Tensor> qkv(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(qkv[i], bench->OnDevice(i, DType::kBf16, rows, heads.width()));
  }
  DeviceBatch sequences;
  ASSIGN_OR_RETURN(sequences, SendBatch(*bench, scene, heads.block_size, batch, cache.view()));
  const auto call = [&](int i) {
    return ops::PrepareAndCacheQkv(bench->stream(), desc, table, IntView(positions_there.view()), qkv[i],
                                   ops::SequenceBatch(sequences.known.view()), cache.view());
  };
  // In place: checked after one call, then timed.
  RETURN_IF_ERROR(call(0));
  Tensor got, values;
  ASSIGN_OR_RETURN(got, CopyToHost(bench->stream(), qkv[0]));
  ASSIGN_OR_RETURN(values, CopyToHost(bench->stream(), cache.v));
  RETURN_IF_ERROR(CheckQkv(*bench, scene, heads, got, values));
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, call));
  // q and k there and back, v read, keys and values written.
  const auto bytes = static_cast<double>(2 * rows * (2 * heads.q_width() + 5 * heads.kv_width()));
  bench->Emit({{"kind", "op"},
               {"op", absl::StrCat("qkv ", scene.name)},
               {"shape", absl::StrCat("T=", rows, " N=", heads.q, " Nkv=", heads.kv, " D=", heads.dim)},
               {"bytes", bytes},
               {"flops", 0}},
              timing);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchAttention(Bench* bench) {
  const bool tiny = bench->options().tiny;
  const Heads heads = {.q = bench->Pick(32, 2), .kv = bench->Pick(4, 1), .dim = bench->Pick(128, 64)};
  const std::vector<Scene> scenes =
      tiny ? std::vector<Scene>{{"decode", 2, 1, 20}, {"prefill", 1, 18, 0}, {"chunk", 2, 5, 17}}
           : std::vector<Scene>{{"decode", 1, 1, 4095},  {"decode", 32, 1, 4095}, {"decode", 256, 1, 1023},
                                {"prefill", 1, 4096, 0}, {"prefill", 8, 1024, 0}, {"chunk", 4, 512, 3584}};
  for (const Scene& scene : scenes) {
    RETURN_IF_ERROR(bench->Measure(absl::StrCat("attention ", scene.name, " B=", scene.sequences),
                                   [&] { return BenchScene(bench, scene, heads); }));
  }
  const std::vector<Scene> before = tiny ? std::vector<Scene>{{"decode", 2, 1, 20}, {"prefill", 1, 18, 0}}
                                         : std::vector<Scene>{{"decode", 32, 1, 1023}, {"prefill", 8, 1024, 0}};
  for (const Scene& scene : before) {
    RETURN_IF_ERROR(bench->Measure(absl::StrCat("qkv ", scene.name), [&] { return BenchQkv(bench, scene, heads); }));
  }
  return absl::OkStatus();
}

}  // namespace switchyard
