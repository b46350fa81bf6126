// Packing and unpacking of exchanged rows.  Every place is computed from existing counts, so the order of threads
// changes nothing:
//   row t of rank r's block:  row_pos - row_offsets[r]     pair:  pair_pos - pair_offsets[r]
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

__device__ inline int32_t* HeadOf(const RowBlocks& blocks, void* memory, int rank) {
  return reinterpret_cast<int32_t*>(static_cast<char*>(memory) + blocks.of[rank].head_row * blocks.row_bytes);
}
__device__ inline const int32_t* HeadOf(const RowBlocks& blocks, const void* memory, int rank) {
  return HeadOf(blocks, const_cast<void*>(memory), rank);
}

struct CountRoutesOp {
  CountRoutesArgs a;

  __device__ void operator()(int64_t, int64_t rank) const {
    a.counts[2 * rank] = a.row_offsets[rank + 1] - a.row_offsets[rank];
    a.counts[2 * rank + 1] = a.pair_offsets[rank + 1] - a.pair_offsets[rank];
  }
};

// Line i < T * K is choice i: its row's packs, and by pack 0 its pair.  Pack 0 of line r < R writes the head of rank r,
// too.  Word is what one access moves: 16 bytes, or 2.
template <class Word>
struct PackRowsOp {
  PackRowsArgs a;

  __device__ void WriteHead(int rank) const {
    const RowBlock& block = a.blocks.of[rank];
    if (rank == a.blocks.rank || block.max_pairs == 0) return;
    int32_t* const head = HeadOf(a.blocks, a.send, rank);
    head[0] = min(a.row_offsets[rank + 1] - a.row_offsets[rank], block.max_rows);
    head[1] = min(a.pair_offsets[rank + 1] - a.pair_offsets[rank], block.max_pairs);
  }

  __device__ void WritePair(int64_t choice, int rank) const {
    if (rank < 0) a.output_row[choice] = -1;
    if (rank < 0 || rank == a.blocks.rank) return;
    const RowBlock& block = a.blocks.of[rank];
    const int pair = a.pair_pos[choice] - a.pair_offsets[rank];
    int64_t first = choice - choice % a.top_k;
    while (a.first_of[first] != rank) ++first;
    const bool fits = pair < block.max_pairs;
    a.output_row[choice] = fits ? a.first_output + block.pair_begin + pair : -1;
    if (!fits) return;
    int32_t* const pair_row = HeadOf(a.blocks, a.send, rank) + kRowBlockHeadInts;
    pair_row[pair] = a.row_pos[first] - a.row_offsets[rank];
    pair_row[block.max_pairs + pair] = a.slot_of[choice];
  }

  __device__ void operator()(int64_t line, int64_t pack) const {
    if (pack == 0 && line < a.blocks.ranks) WriteHead(static_cast<int>(line));
    if (line >= a.rows * a.top_k) return;
    if (pack == 0) WritePair(line, a.rank_of[line]);
    const int rank = a.first_of[line];
    if (rank < 0) return;
    const int64_t token = line / a.top_k;
    char* to = static_cast<char*>(a.own) + token * a.blocks.row_bytes;
    if (rank != a.blocks.rank) {
      const int row = a.row_pos[line] - a.row_offsets[rank];
      if (row >= a.blocks.of[rank].max_rows) return;
      to = static_cast<char*>(a.send) + (a.blocks.of[rank].first_row + row) * a.blocks.row_bytes;
    }
    const char* const from = static_cast<const char*>(a.x) + token * a.x_stride_bytes;
    reinterpret_cast<Word*>(to)[pack] = reinterpret_cast<const Word*>(from)[pack];
  }
};

// Line r, pack i: pair i of rank r.
struct ReadPairsOp {
  ReadPairsArgs a;

  __device__ void operator()(int64_t line, int64_t i) const {
    const int rank = static_cast<int>(line);
    const RowBlock& block = a.blocks.of[rank];
    if (i >= block.max_pairs) return;
    int slot = -1;
    if (rank == a.blocks.rank) {
      if (a.rank_of[i] == rank) slot = a.slot_of[i];
    } else {
      const int32_t* const head = HeadOf(a.blocks, a.received, rank);
      const int32_t* const pair_row = head + kRowBlockHeadInts;
      if (i < head[1] && pair_row[i] >= 0 && pair_row[i] < block.max_rows) slot = pair_row[block.max_pairs + i];
    }
    a.slots[block.pair_begin + i] = slot >= 0 && slot < a.num_slots ? slot : -1;
  }
};

struct PlacePairsOp {
  PlacePairsArgs a;

  __device__ void operator()(int64_t line, int64_t i) const {
    const int rank = static_cast<int>(line);
    const RowBlock& block = a.blocks.of[rank];
    if (i >= block.max_pairs) return;
    const int y_row = a.y_row[block.pair_begin + i];
    if (y_row < 0) return;
    if (rank == a.blocks.rank) {
      a.x_rows[y_row] = block.first_row + static_cast<int>(i / a.top_k);
      a.output_row[i] = y_row;
    } else {
      a.x_rows[y_row] = block.first_row + HeadOf(a.blocks, a.received, rank)[kRowBlockHeadInts + i];
    }
  }
};

int64_t MostPairs(const RowBlocks& blocks) {
  int64_t most = 0;
  for (int r = 0; r < blocks.ranks; ++r) most = std::max<int64_t>(most, blocks.of[r].max_pairs);
  return most;
}

}  // namespace

int CountRoutes(const CudaCall& call, const CountRoutesArgs& a) {
  return LaunchRows(call, CountRoutesOp{a}, 1, a.ranks);
}

int PackRows(const CudaCall& call, const PackRowsArgs& a) {
  // Heads are written also where there are no rows.
  const int64_t lines = std::max<int64_t>(a.rows * a.top_k, a.blocks.ranks);
  if (InWordsOf16(a.x_stride_bytes | a.blocks.row_bytes, a.x, a.send, a.own)) {
    return LaunchRows(call, PackRowsOp<uint4>{a}, lines, a.blocks.row_bytes / 16);
  }
  return LaunchRows(call, PackRowsOp<uint16_t>{a}, lines, a.blocks.row_bytes / 2);
}

int ReadPairs(const CudaCall& call, const ReadPairsArgs& a) {
  return LaunchRows(call, ReadPairsOp{a}, a.blocks.ranks, MostPairs(a.blocks));
}

int PlacePairs(const CudaCall& call, const PlacePairsArgs& a) {
  return LaunchRows(call, PlacePairsOp{a}, a.blocks.ranks, MostPairs(a.blocks));
}

}  // namespace switchyard::ops::cuda
