// Sequences in a paged cache on the device, for tests of attention and of the cache's kernels: a worker's arguments for
// one step, with traps.  Every slot of the cache that the step may not read is NaN, and the table's entries for blocks
// that it may not look up are far outside the cache.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/workers/ops/cuda/kernel_testing.h"
#include "workers/ops/core/kernels_cuda.h"

namespace switchyard::ops {

// A sequence in one step: queries at positions [start, start + queries).
struct SceneSequence {
  int32_t start = 0;
  int32_t queries = 0;
  uint32_t seed = 0;  // of its tokens: the same seed, the same keys, values and queries at the same positions
};

struct SceneShape {
  DType dtype = DType::kF32;
  int64_t heads = 1, kv_heads = 1, head_dim = 64, block_size = 16;
  int64_t window = 0;
  std::vector<double> sinks = {};  // [heads]; empty: none

  int64_t group() const { return heads / kv_heads; }
  std::string Name() const {
    return absl::StrCat(DTypeName(dtype), " N=", heads, " Nkv=", kv_heads, " D=", head_dim, " block ", block_size,
                        " window ", window, sinks.empty() ? "" : " with sinks");
  }
};

// What a graph makes larger than the step: rows, sequences, decodes and tiles that are not there.
struct ScenePadding {
  int64_t rows = 0, sequences = 0, decodes = 0, tiles = 0, keys = 0;
};

// Rows of tokens, a function of (seed, position) alone.  kind 0: q, 1: k, 2: v.
inline Tensor TokenRows(DType dtype, uint32_t seed, int kind, int64_t begin, int64_t count, int64_t width) {
  Tensor rows(dtype, {count, width});
  for (int64_t r = 0; r < count; ++r) {
    const auto row_seed = static_cast<uint32_t>(((begin + r) * 3 + kind) * 1000 + seed);
    const Tensor row = RandomMatrix(dtype, 1, width, row_seed, kind == 0 ? 2.0 : 1.0);
    for (int64_t c = 0; c < width; ++c) Set(rows, r, c, Get(row, 0, c));
  }
  return rows;
}

class PagedScene {
 public:
  // The sequences' rows follow each other in the batch.  With fill, the cache holds what the step reads, its own rows
  // included; else nothing but NaN.
  PagedScene(const SceneShape& shape, std::vector<SceneSequence> sequences, const ScenePadding& padding = {},
             bool fill = true)
      : shape_(shape), sequences_(std::move(sequences)), padding_(padding) {
    for (const SceneSequence& s : sequences_) num_rows_ += s.queries;
    PlaceBlocks(fill);
    UploadSequences();
  }

  const SceneShape& shape() const { return shape_; }
  const std::vector<SceneSequence>& sequences() const { return sequences_; }
  int64_t num_rows() const { return num_rows_; }
  const CudaSequences& device() const { return device_; }
  void* k_cache() const { return k_->get(); }
  void* v_cache() const { return v_->get(); }
  // [P * Nkv * block_size, D]
  Tensor DownloadCache(bool values) const {
    Tensor out(shape_.dtype, {CacheRows(), shape_.head_dim});
    const std::vector<unsigned char> bytes = (values ? *v_ : *k_).Download();
    std::memcpy(out.view().raw(), bytes.data(), bytes.size());
    return out;
  }
  // Row of the cache of a position's kv head.
  int64_t CacheRow(size_t sequence, int64_t pos, int64_t kv_head) const {
    const int64_t block = blocks_[sequence][pos / shape_.block_size];
    return (block * shape_.kv_heads + kv_head) * shape_.block_size + pos % shape_.block_size;
  }
  int64_t CacheRows() const { return num_blocks_ * shape_.kv_heads * shape_.block_size; }

  // The batch's rows of q, k or v, padding's rows zero.
  Tensor BatchRows(int kind) const {
    const int64_t width = (kind == 0 ? shape_.heads : shape_.kv_heads) * shape_.head_dim;
    Tensor all(shape_.dtype, {num_rows_ + padding_.rows, width});
    int64_t row = 0;
    for (const SceneSequence& s : sequences_) {
      const Tensor rows = TokenRows(shape_.dtype, s.seed, kind, s.start, s.queries, width);
      for (int64_t r = 0; r < s.queries; ++r, ++row) {
        for (int64_t c = 0; c < width; ++c) Set(all, row, c, Get(rows, r, c));
      }
    }
    return all;
  }

 private:
  int64_t FirstKey(const SceneSequence& s) const {
    return shape_.window > 0 ? std::max<int64_t>(0, s.start - shape_.window + 1) : 0;
  }

  // Neighbours in a sequence are not neighbours in memory.
  void PlaceBlocks(bool fill) {
    for (const SceneSequence& s : sequences_) {
      const int64_t count = (s.start + s.queries + shape_.block_size - 1) / shape_.block_size;
      blocks_.emplace_back(count);
      for (int64_t& b : blocks_.back()) b = num_blocks_++;
    }
    std::vector<int64_t> shuffled(num_blocks_);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(7));
    for (auto& blocks : blocks_) {
      for (int64_t& b : blocks) b = shuffled[b];
    }
    std::vector<unsigned char> image[2];
    const int64_t row_bytes = shape_.head_dim * DTypeBytes(shape_.dtype);
    for (int kind : {1, 2}) {
      image[kind - 1].assign(CacheRows() * row_bytes, 0xff);
      for (size_t s = 0; fill && s < sequences_.size(); ++s) FillSequence(s, kind, &image[kind - 1]);
    }
    k_ = std::make_unique<DeviceArray<unsigned char>>(image[0]);
    v_ = std::make_unique<DeviceArray<unsigned char>>(image[1]);
  }
  void FillSequence(size_t sequence, int kind, std::vector<unsigned char>* image) const {
    const SceneSequence& s = sequences_[sequence];
    const int64_t row_bytes = shape_.head_dim * DTypeBytes(shape_.dtype), first = FirstKey(s);
    if (s.queries == 0) return;
    const Tensor rows =
        TokenRows(shape_.dtype, s.seed, kind, first, s.start + s.queries - first, shape_.kv_heads * shape_.head_dim);
    for (int64_t pos = first; pos < s.start + s.queries; ++pos) {
      const char* from = static_cast<const char*>(rows.view().raw()) +
                         (pos - first) * rows.view().row_stride() * DTypeBytes(shape_.dtype);
      for (int64_t h = 0; h < shape_.kv_heads; ++h) {
        std::memcpy(image->data() + CacheRow(sequence, pos, h) * row_bytes, from + h * row_bytes, row_bytes);
      }
    }
  }

  void UploadSequences() {
    constexpr int32_t kFarOutside = 1 << 29;
    const int64_t count = static_cast<int64_t>(sequences_.size()) + padding_.sequences;
    size_t stride = 1;
    for (const auto& blocks : blocks_) stride = std::max(stride, blocks.size());
    std::vector<int32_t> row_begin(count, 0), num_query(count, 0), start(count, 0), table(count * stride, kFarOutside);
    std::vector<int32_t> row_sequence, decodes, tiles;
    int32_t max_keys = 0;
    for (int32_t s = 0; s < static_cast<int32_t>(sequences_.size()); ++s) {
      const SceneSequence& sequence = sequences_[s];
      row_begin[s] = static_cast<int32_t>(row_sequence.size());
      num_query[s] = sequence.queries, start[s] = sequence.start;
      max_keys = std::max(max_keys, sequence.start + sequence.queries);
      for (size_t b = FirstKey(sequence) / shape_.block_size; b < blocks_[s].size(); ++b) {
        table[s * stride + b] = static_cast<int32_t>(blocks_[s][b]);
      }
      row_sequence.insert(row_sequence.end(), sequence.queries, s);
      if (sequence.queries == 1) decodes.push_back(s);
      for (int32_t first = 0; sequence.queries > 1 && first < sequence.queries; first += kCudaQueryTile) {
        tiles.insert(tiles.end(), {s, first});
      }
    }
    row_sequence.insert(row_sequence.end(), padding_.rows, -1);
    decodes.insert(decodes.begin() + (decodes.empty() ? 0 : 1), padding_.decodes, -1);  // wherever
    tiles.insert(tiles.end(), 2 * padding_.tiles, -1);
    device_ = {.count = count,
               .rows = static_cast<int64_t>(row_sequence.size()),
               .max_keys = max_keys + padding_.keys,
               .row_begin = Keep(row_begin),
               .num_query = Keep(num_query),
               .start_pos = Keep(start),
               .block_table = Keep(table),
               .table_stride = static_cast<int64_t>(stride),
               .row_sequence = Keep(row_sequence),
               .num_decodes = static_cast<int64_t>(decodes.size()),
               .decodes = Keep(decodes),
               .num_tiles = static_cast<int64_t>(tiles.size()) / 2,
               .tiles = Keep(tiles)};
  }
  // Element -1 is 1, so that a kernel that treats sequence -1 as one finds a query.
  const int32_t* Keep(std::vector<int32_t> values) {
    values.insert(values.begin(), 1);
    arrays_.push_back(std::make_unique<DeviceArray<int32_t>>(values));
    return arrays_.back()->get() + 1;
  }

  SceneShape shape_;
  std::vector<SceneSequence> sequences_;
  ScenePadding padding_;
  int64_t num_rows_ = 0, num_blocks_ = 0;
  std::vector<std::vector<int64_t>> blocks_;  // per sequence
  std::unique_ptr<DeviceArray<unsigned char>> k_, v_;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> arrays_;
  CudaSequences device_;
};

}  // namespace switchyard::ops
