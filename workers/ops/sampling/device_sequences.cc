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

int64_t PlaceOf(const SequenceRows& sequence, size_t in_step) {
  return sequence.slot >= 0 ? sequence.slot : static_cast<int64_t>(in_step);
}

// WriteKv writes new entries into the table of block tables, too: to it the table is a KV cache of one block, in which
// every key is one entry.
constexpr int32_t kOneBlockTable[] = {0};  // of every sequence in that cache
KvCacheView TableAsCache(const TensorView& table) {
  const TensorView numbers(table.raw(), DType::kF32, KvCacheShape(1, 1, table.NumElements(), 1), table.device());
  return {.k = numbers, .v = numbers};
}

}  // namespace

std::vector<int64_t> DeviceSequences::CountsOf(const SequenceLimits& limits) {
  const int64_t sequences = limits.sequences, entries = sequences * limits.blocks;
  return {sequences, sequences, sequences, limits.rows, sequences, 2 * MostTiles(limits),
          sequences, sequences, sequences, 1,           entries,   entries};
}

absl::StatusOr<DeviceSequences> DeviceSequences::Create(Device device, const SequenceLimits& limits) {
  DeviceSequences sequences;
  sequences.limits_ = limits;
  sequences.known_.resize(static_cast<size_t>(limits.sequences));
  ASSIGN_OR_RETURN(sequences.table_, Tensor::Allocate(DType::kI32, {limits.sequences, limits.blocks}, device));
  return sequences;
}

void DeviceSequences::FindTableWrites(absl::Span<const SequenceRows> sequences) {
  new_blocks_.clear();
  table_writes_.clear();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& seq = sequences[s];
    if (seq.num_query == 0) continue;
    const int64_t place = PlaceOf(seq, s);
    Known& known = known_[static_cast<size_t>(place)];
    const auto blocks = static_cast<int64_t>(seq.block_table.size());
    const int64_t first = known.generation == seq.generation ? known.blocks : 0;
    SY_CHECK_LE(first, blocks);
    known = {.generation = seq.generation, .blocks = seq.slot >= 0 ? blocks : 0};
    if (first == blocks) continue;
    table_writes_.push_back({.row_begin = static_cast<int64_t>(new_blocks_.size()),
                             .num_query = static_cast<int32_t>(blocks - first),
                             .start_pos = static_cast<int32_t>(place * limits_.blocks + first),
                             .block_table = kOneBlockTable});
    new_blocks_.insert(new_blocks_.end(), seq.block_table.begin() + first, seq.block_table.end());
  }
}

absl::Status DeviceSequences::SendTableWrites(const Stream& stream, IntUpload* upload) {
  if (table_writes_.empty()) return upload->Send(stream);
  const auto runs = static_cast<int64_t>(table_writes_.size()), entries = static_cast<int64_t>(new_blocks_.size());
  const IntUpload::Array row_begin = upload->Take(runs), num_query = upload->Take(runs), start_pos = upload->Take(runs);
  const IntUpload::Array one_block_table = upload->Take(1), run_of = upload->Take(entries),
                         blocks = upload->Take(entries);
  for (int32_t run = 0; run < runs; ++run) {
    const SequenceRows& seq = table_writes_[static_cast<size_t>(run)];
    row_begin.host[run] = static_cast<int32_t>(seq.row_begin);
    num_query.host[run] = seq.num_query;
    start_pos.host[run] = seq.start_pos;
    std::fill_n(run_of.host.begin() + seq.row_begin, seq.num_query, run);
  }
  one_block_table.host[0] = kOneBlockTable[0];
  std::copy(new_blocks_.begin(), new_blocks_.end(), blocks.host.begin());
  RETURN_IF_ERROR(upload->Send(stream));
  CudaSequences on_device = {.count = runs,
                             .rows = entries,
                             .row_begin = row_begin.device.data(),
                             .num_query = num_query.device.data(),
                             .start_pos = start_pos.device.data(),
                             .block_table = one_block_table.device.data(),
                             .table_stride = 0,
                             .row_sequence = run_of.device.data(),
                             .decodes = nullptr,
                             .tiles = nullptr};
  SequenceBatch batch(on_device);
  batch.rows = table_writes_;
  const TensorView rows(const_cast<int32_t*>(blocks.device.data()), DType::kF32, {entries, 1}, stream.device());
  return WriteKv(stream, batch, rows, rows, TableAsCache(table_));
}

// Rows of no sequence are -1, and so are decodes beyond the sequences of one row.
absl::Status DeviceSequences::Send(const Stream& stream, IntUpload* upload, absl::Span<const SequenceRows> sequences,
                                   int64_t rows, int64_t num_decodes) {
  const int64_t count = limits_.sequences;
  const IntUpload::Array row_begin = upload->Take(count), num_query = upload->Take(count);
  const IntUpload::Array start_pos = upload->Take(count), row_sequence = upload->Take(rows);
  const IntUpload::Array decodes = upload->Take(num_decodes);
  for (const IntUpload::Array* array : {&row_begin, &num_query, &start_pos}) {
    std::fill(array->host.begin(), array->host.end(), 0);
  }
  std::fill(row_sequence.host.begin(), row_sequence.host.end(), -1);
  std::fill(decodes.host.begin(), decodes.host.end(), -1);
  tiles_.clear();
  int64_t num_ones = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows& seq = sequences[s];
    const auto place = static_cast<int32_t>(PlaceOf(seq, s));
    row_begin.host[place] = static_cast<int32_t>(seq.row_begin);
    num_query.host[place] = seq.num_query;
    start_pos.host[place] = seq.start_pos;
    std::fill_n(row_sequence.host.begin() + seq.row_begin, seq.num_query, place);
    if (seq.num_query == 1) decodes.host[num_ones++] = place;
    for (int32_t q = 0; seq.num_query > 1 && q < seq.num_query; q += kCudaQueryTile) {
      const int32_t end = std::min(q + kCudaQueryTile, seq.num_query);
      tiles_.push_back({.sequence = place, .first_query = q, .end_key = seq.start_pos + end});
    }
  }
  std::sort(tiles_.begin(), tiles_.end(), Longer);
  const auto num_tiles = static_cast<int64_t>(tiles_.size());
  const IntUpload::Array tiles = upload->Take(2 * num_tiles);
  for (int64_t i = 0; i < num_tiles; ++i) {
    tiles.host[2 * i] = tiles_[i].sequence;
    tiles.host[2 * i + 1] = tiles_[i].first_query;
  }
  view_ = {.count = count,
           .rows = rows,
           .row_begin = row_begin.device.data(),
           .num_query = num_query.device.data(),
           .start_pos = start_pos.device.data(),
           .block_table = table_.data<int32_t>(),
           .table_stride = limits_.blocks,
           .row_sequence = row_sequence.device.data(),
           .num_decodes = num_decodes,
           .decodes = decodes.device.data(),
           .num_tiles = num_tiles,
           .tiles = tiles.device.data()};
  FindTableWrites(sequences);
  return SendTableWrites(stream, upload);
}

absl::Status DeviceSequences::Set(const Stream& stream, IntUpload* upload, absl::Span<const SequenceRows> sequences,
                                  int64_t num_rows, const KvCacheView& cache) {
  const OpSite at = {"sequences", stream.device()};
  RETURN_IF_ERROR(CheckSequences(at, sequences, num_rows, cache));
  int64_t max_keys = 0, num_decodes = 0, slots = static_cast<int64_t>(sequences.size()), blocks = 0;
  for (const SequenceRows& seq : sequences) {
    max_keys = std::max<int64_t>(max_keys, int64_t{seq.start_pos} + seq.num_query);
    num_decodes += seq.num_query == 1 ? 1 : 0;
    slots = std::max<int64_t>(slots, int64_t{seq.slot} + 1);
    blocks = std::max<int64_t>(blocks, static_cast<int64_t>(seq.block_table.size()));
  }
  if (slots > limits_.sequences || num_rows > limits_.rows || blocks > limits_.blocks) {
    return absl::InvalidArgumentError(absl::StrCat("sequences: ", slots, " sequences, ", num_rows, " rows, ", blocks,
                                                   " blocks of one; limits are ", limits_.sequences, ", ", limits_.rows,
                                                   ", ", limits_.blocks));
  }
  RETURN_IF_ERROR(Send(stream, upload, sequences, num_rows, num_decodes));
  view_.max_keys = max_keys;
  return absl::OkStatus();
}

absl::Status DeviceSequences::SetDecodes(const Stream& stream, IntUpload* upload,
                                         absl::Span<const SequenceRows> sequences, const DecodeBounds& bounds,
                                         const KvCacheView& cache) {
  const OpSite at = {"sequences", stream.device()};
  const auto count = static_cast<int64_t>(sequences.size());
  SY_CHECK_LE(count, bounds.decodes);
  SY_CHECK_LE(bounds.decodes, std::min(limits_.sequences, limits_.rows));
  for (int64_t s = 0; s < count; ++s) {
    SY_CHECK_EQ(sequences[s].num_query, 1);
    SY_CHECK_EQ(sequences[s].row_begin, s);
    SY_CHECK_LT(sequences[s].start_pos, bounds.max_keys);
    SY_CHECK_LT(sequences[s].slot, limits_.sequences);
    SY_CHECK_LE(static_cast<int64_t>(sequences[s].block_table.size()), limits_.blocks);
  }
  RETURN_IF_ERROR(CheckSequences(at, sequences, bounds.decodes, cache));
  RETURN_IF_ERROR(Send(stream, upload, sequences, bounds.decodes, bounds.decodes));
  view_.max_keys = bounds.max_keys;
  return absl::OkStatus();
}

}  // namespace switchyard::ops
