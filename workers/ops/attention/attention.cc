#include "workers/ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/ops/attention/attention_dropout.h"
#include "workers/ops/attention/attention_layout.h"
#include "workers/ops/attention/kv_checks.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/core/thread_scratch.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

int64_t AttentionScratchBytes(int64_t rows, int64_t head_dim) {
  static_assert(kAttentionKeyTile == 64);                                                          // the kernels' tile
  static_assert(static_cast<int>(KvFormat::kInt8) == 1 && static_cast<int>(KvFormat::kFp8) == 2);  // and their numbers
  const int64_t plain_bytes = LayOutAttention(rows, head_dim, kAttentionKeyTile).total * 8;
  return std::max(plain_bytes, LayOutTileAttention(rows, head_dim).total);
}

namespace {

// Queries [query, query + count) of a sequence; each becomes one task per kv head.
struct QueryTile {
  int32_t sequence;
  int32_t query, count;
};

// Tiles begin at multiples of this many positions, but a chunk's first: see attention_tiles_cpu.cc.
int64_t Alignment(int64_t queries_per_tile) {
  int64_t alignment = 1;
  while (alignment < 16 && 2 * alignment <= queries_per_tile) alignment *= 2;
  return alignment;
}

// Queries of a tile: enough rows that preparing a key tile pays, fewer if that would leave threads idle.
int64_t QueriesPerTile(int64_t num_query, int64_t group, int64_t kv_heads, int64_t threads) {
  const int64_t most = std::max<int64_t>(1, kAttentionTaskRows / group);
  const int64_t tiles_wanted = (4 * threads + kv_heads - 1) / kv_heads;
  const int64_t queries = std::clamp((num_query + tiles_wanted - 1) / tiles_wanted, std::min<int64_t>(most, 16), most);
  return queries / Alignment(queries) * Alignment(queries);
}

std::vector<QueryTile> CutIntoTiles(absl::Span<const SequenceRows> sequences, int64_t group, int64_t kv_heads,
                                    int64_t threads) {
  std::vector<QueryTile> tiles;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const int64_t step = QueriesPerTile(sequences[s].num_query, group, kv_heads, threads);
    for (int64_t q = 0; q < sequences[s].num_query;) {
      const int64_t past_boundary = (sequences[s].start_pos + q) % Alignment(step);
      const int64_t wanted = past_boundary == 0 ? step : Alignment(step) - past_boundary;
      const int64_t count = std::min<int64_t>(wanted, sequences[s].num_query - q);
      tiles.push_back({static_cast<int32_t>(s), static_cast<int32_t>(q), static_cast<int32_t>(count)});
      q += count;
    }
  }
  // Tiles late in a context have the most keys: started first, they do not leave one thread working at the end.
  const auto keys = [&](const QueryTile& t) { return int64_t{sequences[t.sequence].start_pos} + t.query + t.count; };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const QueryTile& a, const QueryTile& b) { return keys(a) * a.count > keys(b) * b.count; });
  return tiles;
}

absl::Status Check(const OpSite& at, const AttentionDesc& desc, const TensorView& q, const KvCacheView& cache,
                   const TensorView& out) {
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "q", q));
  RETURN_IF_ERROR(CheckKvCache(at, cache, q.dtype()));
  if (desc.num_heads < 1 || desc.num_heads % cache.num_kv_heads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("attention: num_heads ", desc.num_heads,
                                                   " is not a positive multiple of the cache's ", cache.num_kv_heads(),
                                                   " kv heads"));
  }
  if (cache.head_dim() > kMaxHeadDim || desc.window < 0 || !std::isfinite(desc.scale)) {
    return absl::InvalidArgumentError(absl::StrCat("attention: head_dim ", cache.head_dim(), " (limit ", kMaxHeadDim,
                                                   "), window ", desc.window, " or scale ", desc.scale,
                                                   " is not allowed"));
  }
  if (desc.sinks.rank() != 0) {
    RETURN_IF_ERROR(ExpectView(at, "sinks", desc.sinks, AccDType(q.dtype()), {desc.num_heads}));
  }
  RETURN_IF_ERROR(CheckAttentionDropout(at, desc.dropout, q.dim(0)));
  const Shape shape = {q.dim(0), desc.num_heads * cache.head_dim()};
  RETURN_IF_ERROR(ExpectView(at, "q", q, q.dtype(), shape));
  return ExpectView(at, "out", out, q.dtype(), shape);
}

absl::Status AttentionOnCuda(const Stream& stream, const AttentionDesc& desc, const CudaSequences& sequences,
                             const TensorView& q, const KvCacheView& cache, const TensorView& out) {
  const CudaAttentionArgs args = {.dtype = DTypeCode(q.dtype()),
                                  .sequences = sequences,
                                  .q = q.raw(),
                                  .out = out.raw(),
                                  .q_stride = q.row_stride(),
                                  .out_stride = out.row_stride(),
                                  .k_cache = cache.k.raw(),
                                  .v_cache = cache.v.raw(),
                                  .heads = desc.num_heads,
                                  .kv_heads = cache.num_kv_heads(),
                                  .block_size = cache.block_size(),
                                  .head_dim = cache.head_dim(),
                                  .window = desc.window,
                                  .scale = desc.scale,
                                  .sinks = desc.sinks.rank() == 0 ? nullptr : desc.sinks.raw()};
  return RunOnCuda("attention", stream, &CudaKernelTable::attention, args);
}

}  // namespace

absl::Status PagedAttention(const Stream& stream, const AttentionDesc& desc, const SequenceBatch& batch,
                            const TensorView& q, const KvCacheView& cache, const TensorView& out) {
  const OpSite at = {"attention", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(Check(at, desc, q, cache, out));
  RETURN_IF_ERROR(CheckSequences(at, batch, q.dim(0), cache));
  if (!at.device.is_cpu()) return AttentionOnCuda(stream, desc, *batch.on_device, q, cache, out);
  const absl::Span<const SequenceRows> sequences = batch.rows;
  const int64_t kv_heads = cache.num_kv_heads(), head_dim = cache.head_dim(), group = desc.num_heads / kv_heads;
  const int64_t head_elements = cache.block_size() * cache.k.dim(3);
  const int64_t head_bytes = head_elements * DTypeBytes(cache.k.dtype());
  const std::vector<QueryTile> tiles = CutIntoTiles(sequences, group, kv_heads, stream.pool().num_threads());
  const int64_t sinks_bytes = desc.sinks.rank() == 0 ? 0 : group * DTypeBytes(desc.sinks.dtype());
  const bool in_tiles = q.dtype() == DType::kBf16 && cache.format == KvFormat::kPlain && !desc.dropout.on();
  const auto kernel = in_tiles ? CpuKernels().attention_bf16 : CpuKernels().attention;
  stream.pool().Run(static_cast<int64_t>(tiles.size()) * kv_heads, [&](int64_t i) {
    const QueryTile& tile = tiles[i / kv_heads];
    const SequenceRows& seq = sequences[tile.sequence];
    const int64_t head = i % kv_heads, row = seq.row_begin + tile.query, column = head * group * head_dim;
    kernel({.dtype = DTypeCode(q.dtype()),
            .q = ElementAt(q, row, column),
            .out = ElementAt(out, row, column),
            .q_stride = q.row_stride(),
            .out_stride = out.row_stride(),
            .queries = tile.count,
            .group = group,
            .head_dim = head_dim,
            .first_pos = seq.start_pos + tile.query,
            .window = desc.window,
            .scale = desc.scale,
            .sinks = sinks_bytes == 0 ? nullptr : static_cast<const char*>(desc.sinks.raw()) + head * sinks_bytes,
            .dropout = AttentionDropoutOf(desc.dropout, row, head * group),
            .k = static_cast<const char*>(cache.k.raw()) + head * head_bytes,
            .v = static_cast<const char*>(cache.v.raw()) + head * head_bytes,
            .block_stride = kv_heads * head_elements,
            .block_size = cache.block_size(),
            .kv_format = static_cast<uint8_t>(cache.format),
            .block_table = seq.block_table.data(),
            .scratch = ThreadScratch(ScratchUse::kTask, AttentionScratchBytes(tile.count * group, head_dim))});
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
