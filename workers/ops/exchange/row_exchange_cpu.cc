#include "workers/ops/exchange/row_exchange_cpu.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/op_checks.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

// The head of rank r's block.
int32_t* HeadOf(const RowBlocks& blocks, void* memory, int r) {
  return reinterpret_cast<int32_t*>(static_cast<char*>(memory) + blocks.of[r].head_row * blocks.row_bytes);
}
const int32_t* HeadOf(const RowBlocks& blocks, const void* memory, int r) {
  return HeadOf(blocks, const_cast<void*>(memory), r);
}

// Heads with their counts; InvalidArgument if a block is too small.
absl::Status WriteHeads(const PackRowsArgs& a) {
  for (int r = 0; r < a.blocks.ranks; ++r) {
    const RowBlock& block = a.blocks.of[r];
    const int32_t rows = a.row_offsets[r + 1] - a.row_offsets[r], pairs = a.pair_offsets[r + 1] - a.pair_offsets[r];
    if (r == a.blocks.rank) continue;
    if (rows > block.max_rows || pairs > block.max_pairs) {
      return absl::InvalidArgumentError(absl::StrCat("exchange: ", rows, " rows and ", pairs, " pairs for rank ", r,
                                                     " where its block takes ", block.max_rows, " and ",
                                                     block.max_pairs));
    }
    if (block.max_pairs == 0) continue;
    int32_t* const head = HeadOf(a.blocks, a.send, r);
    head[0] = rows;
    head[1] = pairs;
  }
  return absl::OkStatus();
}

// Choice `entry` of row `token`: the pair, and the row where this is the first pair of it for that rank.
void PackEntry(const PackRowsArgs& a, int64_t token, int64_t entry) {
  const int32_t rank = a.rank_of[entry];
  if (rank < 0) a.output_row[entry] = -1;
  if (rank < 0) return;
  const auto bytes = static_cast<size_t>(a.blocks.row_bytes);
  const char* const from = static_cast<const char*>(a.x) + token * a.x_stride_bytes;
  if (rank == a.blocks.rank) {
    if (a.first_of[entry] >= 0) std::memcpy(static_cast<char*>(a.own) + token * a.blocks.row_bytes, from, bytes);
    return;
  }
  int64_t first = token * a.top_k;
  while (a.first_of[first] != rank) ++first;
  const RowBlock& block = a.blocks.of[rank];
  const int32_t row = a.row_pos[first] - a.row_offsets[rank], pair = a.pair_pos[entry] - a.pair_offsets[rank];
  int32_t* const pair_row = HeadOf(a.blocks, a.send, rank) + kRowBlockHeadInts;
  pair_row[pair] = row;
  pair_row[block.max_pairs + pair] = a.slot_of[entry];
  a.output_row[entry] = a.first_output + block.pair_begin + pair;
  if (first != entry) return;
  std::memcpy(static_cast<char*>(a.send) + (block.first_row + row) * a.blocks.row_bytes, from, bytes);
}

absl::Status CheckBlock(const ReadPairsArgs& a, int r) {
  const RowBlock& block = a.blocks.of[r];
  const int32_t* const head = HeadOf(a.blocks, a.received, r);
  if (head[0] < 0 || head[0] > block.max_rows || head[1] < head[0] || head[1] > block.max_pairs) {
    return absl::InternalError(absl::StrCat("exchange: rank ", r, " says ", head[0], " rows and ", head[1],
                                            " pairs, at most ", block.max_rows, " and ", block.max_pairs));
  }
  const int32_t* const pair_row = head + kRowBlockHeadInts;
  const int32_t* const pair_slot = pair_row + block.max_pairs;
  for (int32_t i = 0; i < head[1]; ++i) {
    if (pair_row[i] >= 0 && pair_row[i] < head[0] && pair_slot[i] >= 0 && pair_slot[i] < a.num_slots) continue;
    return absl::InternalError(absl::StrCat("exchange: pair ", i, " of rank ", r, " is row ", pair_row[i], " of ",
                                            head[0], ", expert slot ", pair_slot[i], " of ", a.num_slots));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackRowsOnCpu(const Stream& stream, const PackRowsArgs& a) {
  RETURN_IF_ERROR(WriteHeads(a));
  stream.pool().ParallelFor(a.rows, RowGrain(a.blocks.row_bytes * a.top_k), [&](int64_t begin, int64_t end) {
    for (int64_t entry = begin * a.top_k; entry < end * a.top_k; ++entry) PackEntry(a, entry / a.top_k, entry);
  });
  return absl::OkStatus();
}

absl::Status ReadPairsOnCpu(const ReadPairsArgs& a) {
  for (int r = 0; r < a.blocks.ranks; ++r) {
    const RowBlock& block = a.blocks.of[r];
    int32_t* const to = a.slots + block.pair_begin;
    if (r == a.blocks.rank) {
      for (int32_t i = 0; i < block.max_pairs; ++i) to[i] = a.rank_of[i] == r ? a.slot_of[i] : -1;
    } else if (block.max_pairs > 0) {
      RETURN_IF_ERROR(CheckBlock(a, r));
      const int32_t* const head = HeadOf(a.blocks, a.received, r);
      std::copy_n(head + kRowBlockHeadInts + block.max_pairs, head[1], to);
      std::fill_n(to + head[1], block.max_pairs - head[1], -1);
    }
  }
  return absl::OkStatus();
}

void PlacePairsOnCpu(const PlacePairsArgs& a) {
  for (int r = 0; r < a.blocks.ranks; ++r) {
    const RowBlock& block = a.blocks.of[r];
    const int32_t* const y_row = a.y_row + block.pair_begin;
    const bool own = r == a.blocks.rank;
    const int32_t* const pair_row = own ? nullptr : HeadOf(a.blocks, a.received, r) + kRowBlockHeadInts;
    for (int32_t i = 0; i < block.max_pairs; ++i) {
      if (y_row[i] < 0) continue;
      a.x_rows[y_row[i]] = block.first_row + (own ? static_cast<int32_t>(i / a.top_k) : pair_row[i]);
      if (own) a.output_row[i] = y_row[i];
    }
  }
}

}  // namespace switchyard::ops
