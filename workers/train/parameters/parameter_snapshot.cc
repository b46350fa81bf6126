#include "workers/train/parameters/parameter_snapshot.h"

#include <cstring>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameter_files.h"
#include "workers/train/parameters/shard_stream.h"

namespace switchyard::train {
namespace {

void CopyTensor(const Stream& stream, const Tensor& from, const Tensor& to) {
  constexpr int64_t kGrain = 1 << 20;
  const char* const source = static_cast<const char*>(from.view().raw());
  char* const target = static_cast<char*>(to.view().raw());
  stream.pool().ParallelFor(from.bytes(), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
  });
}

// Whether copies are of the present blocks: experts may have moved since they were made.
bool AreOf(const std::vector<ParameterBlock>& copies, const Parameters& parameters, int rank) {
  size_t next = 0;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (!WritesBlock(block, rank)) continue;
    if (next == copies.size() || copies[next++].parts[0].name != block.parts[0].name) return false;
  }
  return next == copies.size();
}

}  // namespace

int64_t ParameterSnapshot::BytesToTake(const Parameters& parameters, int rank) const {
  SY_CHECK(parameters.offload() == nullptr);
  if (AreOf(blocks_, parameters, rank)) return 0;
  int64_t bytes = 0;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (!WritesBlock(block, rank)) continue;
    bytes += static_cast<int64_t>(StateOf(block).size()) * block.size() * DTypeBytes(block.master.dtype());
  }
  return bytes;
}

absl::Status ParameterSnapshot::Take(const Stream& stream, const Parameters& parameters, int rank,
                                     const SnapshotRanks& ranks) {
  std::vector<ParameterBlock> blocks = std::exchange(blocks_, {});
  if (!AreOf(blocks, parameters, rank)) blocks.clear();
  size_t next = 0;
  for (const ParameterBlock& from : parameters.blocks()) {
    if (!WritesBlock(from, rank)) continue;
    if (next == blocks.size()) {
      ParameterBlock block;
      block.parts = from.parts;
      block.frozen = from.frozen;
      block.shard = from.shard;
      block.writer = from.writer;
      for (const auto state : StateOf(from)) {
        ASSIGN_OR_RETURN(block.*state, Tensor::Allocate((from.*state).dtype(), from.StateShape(), stream.device()));
      }
      blocks.push_back(std::move(block));
    }
    ParameterBlock& to = blocks[next++];
    if (from.is_sharded()) continue;
    for (const auto state : StateOf(from)) CopyTensor(stream, from.*state, to.*state);
  }
  blocks_ = std::move(blocks);
  return parameters.shards_dense() ? TakeSharded(parameters, rank, ranks) : absl::OkStatus();
}

absl::Status ParameterSnapshot::TakeSharded(const Parameters& parameters, int rank, const SnapshotRanks& ranks) {
  ShardStream shards(ranks.comm, parameters.blocks(), {.round_limit = ranks.limit});
  size_t next = 0;
  for (const ParameterBlock& from : parameters.blocks()) {
    if (!WritesBlock(from, rank)) continue;
    const ParameterBlock& to = blocks_[next++];
    if (!from.is_sharded()) continue;
    for (const model::Param& part : from.parts) {
      for (const auto state : StateOf(from)) {
        const TensorView values = (to.*state).view().Reshape({from.size()});
        const TensorView here = values.Rows(part.first_row * part.columns, part.rows * part.columns);
        RETURN_IF_ERROR(
            shards.Read(absl::MakeSpan(static_cast<char*>(here.raw()), static_cast<size_t>(comm::NumBytes(here)))));
      }
    }
  }
  return shards.Finish();
}

}  // namespace switchyard::train
