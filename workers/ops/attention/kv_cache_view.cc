#include "workers/ops/attention/kv_cache_view.h"

#include <cstring>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/ops/attention/kv_checks.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {

CudaKvArgs MakeCudaKvArgs(const CudaSequences& sequences, const TensorView& k, const TensorView& v,
                          const KvCacheView& cache) {
  return {.dtype = DTypeCode(cache.k.dtype()),
          .sequences = sequences,
          .k_rows = k.raw(),
          .v_rows = v.raw(),
          .k_stride = k.row_stride(),
          .v_stride = v.row_stride(),
          .k_cache = cache.k.raw(),
          .v_cache = cache.v.raw(),
          .kv_heads = cache.num_kv_heads(),
          .block_size = cache.block_size(),
          .head_dim = cache.head_dim()};
}

absl::Status CheckKvCache(const OpSite& at, const KvCacheView& cache, DType dtype) {
  if (cache.k.rank() != 4 || !cache.k.contiguous() || !cache.v.contiguous() || cache.k.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(at.op, ": the cache must be contiguous [P, Nkv, block_size, D], is ", cache.k.ToString()));
  }
  if (cache.format != KvFormat::kPlain) {
    if (!at.device.is_cpu() || dtype == DType::kF64) {
      return absl::UnimplementedError(absl::StrCat(at.op, ": a KV cache of ", KvFormatName(cache.format), " for ",
                                                   DTypeName(dtype), " on ", at.device.ToString()));
    }
    dtype = DType::kU8;
  }
  RETURN_IF_ERROR(ExpectView(at, "k cache", cache.k, dtype, cache.k.shape()));
  return ExpectView(at, "v cache", cache.v, dtype, cache.k.shape());
}

absl::Status CheckSequences(const OpSite& at, absl::Span<const SequenceRows> sequences, int64_t num_rows,
                            const KvCacheView& cache) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& seq = sequences[s];
    if (seq.num_query == 0) continue;
    if (seq.num_query < 0 || seq.start_pos < 0 || seq.row_begin < 0 || seq.row_begin + seq.num_query > num_rows) {
      return absl::InvalidArgumentError(absl::StrCat(at.op, ": sequence ", s, " has rows [", seq.row_begin, ", +",
                                                     seq.num_query, ") at position ", seq.start_pos, ", the batch has ",
                                                     num_rows, " rows"));
    }
    const int64_t end_pos = int64_t{seq.start_pos} + seq.num_query;
    const int64_t needed = (end_pos + cache.block_size() - 1) / cache.block_size();
    if (static_cast<int64_t>(seq.block_table.size()) < needed) {
      return absl::InvalidArgumentError(absl::StrCat(at.op, ": sequence ", s, " needs ", needed, " blocks of ",
                                                     cache.block_size(), " for ", end_pos, " positions, has ",
                                                     seq.block_table.size()));
    }
    for (int64_t b = 0; b < needed; ++b) {
      if (seq.block_table[b] < 0 || seq.block_table[b] >= cache.num_blocks()) {
        return absl::InvalidArgumentError(absl::StrCat(at.op, ": block ", seq.block_table[b], " of sequence ", s,
                                                       " is outside [0, ", cache.num_blocks(), ")"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequences(const OpSite& at, const SequenceBatch& sequences, int64_t num_rows,
                            const KvCacheView& cache) {
  if (at.device.is_cpu()) return CheckSequences(at, sequences.rows, num_rows, cache);
  if (sequences.on_device != nullptr && sequences.on_device->rows <= num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(at.op, ": no sequences on ", at.device.ToString(), ", or more than ", num_rows, " rows of them"));
}

namespace {

// Copies one row's heads to the place of position `pos` in the cache.
void WriteRow(const TensorView& rows, int64_t row, const TensorView& cache, int64_t block, int64_t in_block) {
  const int64_t heads = cache.dim(1), block_size = cache.dim(2), elem_bytes = DTypeBytes(cache.dtype());
  const int64_t head_bytes = cache.dim(3) * elem_bytes;
  const char* from = static_cast<const char*>(rows.raw()) + row * rows.row_stride() * elem_bytes;
  char* to = static_cast<char*>(cache.raw()) + (block * heads * block_size + in_block) * head_bytes;
  for (int64_t h = 0; h < heads; ++h) std::memcpy(to + h * block_size * head_bytes, from + h * head_bytes, head_bytes);
}

// Likewise in 8 bits.
void QuantizeRow(const TensorView& rows, int64_t row, const KvCacheView& cache, const TensorView& to, int64_t block,
                 int64_t in_block) {
  const int64_t block_size = cache.block_size(), dim = cache.head_dim();
  std::vector<float> values(static_cast<size_t>(dim));
  for (int64_t h = 0; h < cache.num_kv_heads(); ++h) {
    VisitDType(rows.dtype(), [&]<class From>() {
      const From* const from = rows.row<From>(row) + h * dim;
      for (int64_t d = 0; d < dim; ++d) values[static_cast<size_t>(d)] = static_cast<float>(from[d]);
    });
    auto* const head =
        static_cast<uint8_t*>(to.raw()) + (block * cache.num_kv_heads() + h) * block_size * (dim + kKvScaleBytes);
    const float scale = QuantizeKey(cache.format, values.data(), dim, head + in_block * dim);
    std::memcpy(head + block_size * dim + in_block * kKvScaleBytes, &scale, sizeof(scale));
  }
}

}  // namespace

absl::Status WriteKv(const Stream& stream, const SequenceBatch& batch, const TensorView& k, const TensorView& v,
                     const KvCacheView& cache) {
  const OpSite at = {"write_kv", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "k", k));
  RETURN_IF_ERROR(CheckKvCache(at, cache, k.dtype()));
  const Shape shape = {k.dim(0), cache.num_kv_heads() * cache.head_dim()};
  RETURN_IF_ERROR(ExpectView(at, "k", k, k.dtype(), shape));
  RETURN_IF_ERROR(ExpectView(at, "v", v, k.dtype(), shape));
  RETURN_IF_ERROR(CheckSequences(at, batch, k.dim(0), cache));
  if (!at.device.is_cpu())
    return RunOnCuda("write_kv", stream, &CudaKernelTable::write_kv, MakeCudaKvArgs(*batch.on_device, k, v, cache));
  const absl::Span<const SequenceRows> sequences = batch.rows;
  const int64_t grain = RowGrain(4 * shape[1] * DTypeBytes(k.dtype()));
  const auto write = [&](const SequenceRows& seq, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t pos = seq.start_pos + i;
      const int64_t block = seq.block_table[pos / cache.block_size()], in_block = pos % cache.block_size();
      if (cache.format == KvFormat::kPlain) {
        WriteRow(k, seq.row_begin + i, cache.k, block, in_block);
        WriteRow(v, seq.row_begin + i, cache.v, block, in_block);
      } else {
        QuantizeRow(k, seq.row_begin + i, cache, cache.k, block, in_block);
        QuantizeRow(v, seq.row_begin + i, cache, cache.v, block, in_block);
      }
    }
  };
  // Long chunks are split by rows, a batch of decodes by sequences.
  for (const SequenceRows& seq : sequences) {
    if (seq.num_query > grain) {
      stream.pool().ParallelFor(seq.num_query, grain, [&](int64_t begin, int64_t end) { write(seq, begin, end); });
    }
  }
  stream.pool().ParallelFor(static_cast<int64_t>(sequences.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      if (sequences[s].num_query <= grain) write(sequences[s], 0, sequences[s].num_query);
    }
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
