#include "workers/ops/sampling/device_sequences.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/attention/kv_checks.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

// In the order of their start: blocks are started in the order of the list, and a long one that starts last would keep
// the device waiting.  A total order, so that the list is a function of the step.
bool Longer(const QueryTile& a, const QueryTile& b) {
  if (a.end_key != b.end_key) return a.end_key > b.end_key;
  return a.sequence != b.sequence ? a.sequence < b.sequence : a.first_query < b.first_query;
}

// Each sequence's last tile may be a part of one.
int64_t MostTiles(const SequenceLimits& limits) { return limits.rows / kCudaQueryTile + limits.sequences; }

}  // namespace

absl::StatusOr<DeviceSequences> DeviceSequences::Create(Device device, const SequenceLimits& limits) {
  DeviceSequences sequences;
  sequences.limits_ = limits;
  std::vector<int64_t> capacities(kNumArrays);
  for (const Array array : {kRowBegin, kNumQuery, kStartPos, kDecodes}) capacities[array] = limits.sequences;
  capacities[kRowSequence] = limits.rows;
  capacities[kTiles] = 2 * MostTiles(limits);
  capacities[kBlockTable] = limits.sequences * limits.blocks;
  ASSIGN_OR_RETURN(sequences.upload_, IntUpload::Create(device, std::move(capacities)));
  return sequences;
}

// Sequences from sequences.size() to count are empty; rows of none are -1.
absl::Status DeviceSequences::Send(const Stream& stream, absl::Span<const SequenceRows> sequences, int64_t count,
                                   int64_t rows, int64_t stride) {
  RETURN_IF_ERROR(upload_.Begin(stream));
  absl::Span<int32_t> row_sequence = upload_.host(kRowSequence), decodes = upload_.host(kDecodes);
  absl::Span<int32_t> tiles = upload_.host(kTiles), table = upload_.host(kBlockTable);
  std::fill_n(row_sequence.begin(), rows, -1);
  std::fill_n(decodes.begin(), count, -1);
  tiles_.clear();
  int64_t num_decodes = 0;
  for (int64_t s = 0; s < count; ++s) {
    const SequenceRows seq = s < static_cast<int64_t>(sequences.size()) ? sequences[s] : SequenceRows{};
    upload_.host(kRowBegin)[s] = static_cast<int32_t>(seq.row_begin);
    upload_.host(kNumQuery)[s] = seq.num_query;
    upload_.host(kStartPos)[s] = seq.start_pos;
    std::copy(seq.block_table.begin(), seq.block_table.end(), table.begin() + s * stride);
    std::fill_n(row_sequence.begin() + seq.row_begin, seq.num_query, static_cast<int32_t>(s));
    if (seq.num_query == 1) decodes[num_decodes++] = static_cast<int32_t>(s);
    for (int32_t q = 0; seq.num_query > 1 && q < seq.num_query; q += kCudaQueryTile) {
      const int32_t end = std::min(q + kCudaQueryTile, seq.num_query);
      tiles_.push_back({.sequence = static_cast<int32_t>(s), .first_query = q, .end_key = seq.start_pos + end});
    }
  }
  std::sort(tiles_.begin(), tiles_.end(), Longer);
  const auto num_tiles = static_cast<int64_t>(tiles_.size());
  for (int64_t i = 0; i < num_tiles; ++i) {
    tiles[2 * i] = tiles_[i].sequence;
    tiles[2 * i + 1] = tiles_[i].first_query;
  }
  int64_t counts[kNumArrays];
  for (const Array array : {kRowBegin, kNumQuery, kStartPos, kDecodes}) counts[array] = count;
  counts[kRowSequence] = rows;
  counts[kTiles] = 2 * num_tiles;
  counts[kBlockTable] = count * stride;
  RETURN_IF_ERROR(upload_.Send(stream, counts));
  view_.count = count;
  view_.rows = rows;
  view_.num_decodes = num_decodes;
  view_.num_tiles = num_tiles;
  view_.table_stride = stride;
  view_.row_begin = upload_.view(kRowBegin, count).data();
  view_.num_query = upload_.view(kNumQuery, count).data();
  view_.start_pos = upload_.view(kStartPos, count).data();
  view_.block_table = upload_.view(kBlockTable, count * stride).data();
  view_.row_sequence = upload_.view(kRowSequence, rows).data();
  view_.decodes = upload_.view(kDecodes, num_decodes).data();
  view_.tiles = upload_.view(kTiles, 2 * num_tiles).data();
  return absl::OkStatus();
}

absl::Status DeviceSequences::Set(const Stream& stream, absl::Span<const SequenceRows> sequences, int64_t num_rows,
                                  const KvCacheView& cache) {
  const OpSite at = {"sequences", stream.device()};
  RETURN_IF_ERROR(CheckSequences(at, sequences, num_rows, cache));
  int64_t max_keys = 0, blocks = 1;
  for (const SequenceRows& seq : sequences) {
    max_keys = std::max<int64_t>(max_keys, int64_t{seq.start_pos} + seq.num_query);
    blocks = std::max<int64_t>(blocks, static_cast<int64_t>(seq.block_table.size()));
  }
  if (static_cast<int64_t>(sequences.size()) > limits_.sequences || num_rows > limits_.rows ||
      blocks > limits_.blocks) {
    return absl::InvalidArgumentError(absl::StrCat("sequences: ", sequences.size(), " sequences, ", num_rows, " rows, ",
                                                   blocks, " blocks of one; limits are ", limits_.sequences, ", ",
                                                   limits_.rows, ", ", limits_.blocks));
  }
  view_ = CudaSequences();
  RETURN_IF_ERROR(Send(stream, sequences, static_cast<int64_t>(sequences.size()), num_rows, blocks));
  view_.max_keys = max_keys;
  return absl::OkStatus();
}

absl::Status DeviceSequences::SetDecodes(const Stream& stream, absl::Span<const SequenceRows> sequences,
                                         const DecodeBounds& bounds, const KvCacheView& cache) {
  const OpSite at = {"sequences", stream.device()};
  const auto count = static_cast<int64_t>(sequences.size());
  SY_CHECK_LE(count, bounds.decodes);
  SY_CHECK_LE(bounds.decodes, std::min(limits_.sequences, limits_.rows));
  for (int64_t s = 0; s < count; ++s) {
    SY_CHECK_EQ(sequences[s].num_query, 1);
    SY_CHECK_EQ(sequences[s].row_begin, s);
    SY_CHECK_LT(sequences[s].start_pos, bounds.max_keys);
    SY_CHECK_LE(static_cast<int64_t>(sequences[s].block_table.size()), limits_.blocks);
  }
  RETURN_IF_ERROR(CheckSequences(at, sequences, bounds.decodes, cache));
  view_ = CudaSequences();
  // Rows of the table stand where the graph was recorded to find them.
  RETURN_IF_ERROR(Send(stream, sequences, bounds.decodes, bounds.decodes, limits_.blocks));
  view_.num_decodes = bounds.decodes;
  view_.decodes = upload_.view(kDecodes, bounds.decodes).data();
  view_.max_keys = bounds.max_keys;
  return absl::OkStatus();
}

}  // namespace switchyard::ops
