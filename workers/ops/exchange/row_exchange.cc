#include "workers/ops/exchange/row_exchange.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/exchange/row_exchange_cpu.h"

namespace switchyard::ops {
namespace {

// A matrix of blocks.num_rows rows.
absl::Status ExpectBlocks(const OpSite& at, const char* name, const TensorView& memory, const RowBlocks& blocks) {
  if (memory.rank() == 2 && memory.dim(0) == blocks.num_rows && memory.contiguous() && memory.device() == at.device &&
      memory.dim(1) * DTypeBytes(memory.dtype()) == blocks.row_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("exchange: ", name, " must have ", blocks.num_rows, " rows of ",
                                                 blocks.row_bytes, " bytes on ", at.device.ToString(), ", is ",
                                                 memory.ToString()));
}

absl::Status ExpectInt32(const OpSite& at, const char* name, const TensorView& view, int64_t count) {
  return ExpectView(at, name, view, DType::kI32, {count});
}

}  // namespace

absl::Status RouteRows(const Stream& stream, const TensorView& topk_idx, const PlaceTable& table, int64_t first_token,
                       const RowRoutes& routes) {
  const int64_t ranks = routes.pairs.offsets.NumElements() - 1;
  RETURN_IF_ERROR(FindExpertPlaces(stream, topk_idx, table, first_token, routes.places));
  RETURN_IF_ERROR(BuildExpertOrder(stream, routes.places.rank_of, ranks, routes.pairs));
  return BuildExpertOrder(stream, routes.places.first_of, ranks, routes.rows);
}

absl::Status CountRoutes(const Stream& stream, const RowRoutes& routes, const TensorView& counts) {
  const OpSite at = {"exchange", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  const int64_t ranks = routes.pairs.offsets.NumElements() - 1;
  RETURN_IF_ERROR(ExpectView(at, "counts", counts, DType::kI32, {ranks, 2}));
  const CountRoutesArgs args = {.ranks = ranks,
                                .row_offsets = routes.rows.offsets.data<int32_t>(),
                                .pair_offsets = routes.pairs.offsets.data<int32_t>(),
                                .counts = counts.data<int32_t>()};
  if (!at.device.is_cpu()) return RunOnCuda("exchange", stream, &CudaKernelTable::count_routes, args);
  for (int64_t r = 0; r < ranks; ++r) {
    args.counts[2 * r] = args.row_offsets[r + 1] - args.row_offsets[r];
    args.counts[2 * r + 1] = args.pair_offsets[r + 1] - args.pair_offsets[r];
  }
  return absl::OkStatus();
}

absl::Status PackRows(const Stream& stream, const RowBlocks& blocks, const RowRoutes& routes, const TensorView& x,
                      const PackedRows& packed) {
  const OpSite at = {"exchange", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  if (x.rank() != 2) return absl::InvalidArgumentError(absl::StrCat("exchange: x must be a matrix, is ", x.ToString()));
  const int64_t rows = x.dim(0), choices = routes.places.rank_of.NumElements();
  RETURN_IF_ERROR(ExpectBlocks(at, "send", packed.send, blocks));
  RETURN_IF_ERROR(ExpectView(at, "x", x, packed.send.dtype(), {rows, packed.send.dim(1)}));
  RETURN_IF_ERROR(ExpectView(at, "own", packed.own, x.dtype(), x.shape()));
  RETURN_IF_ERROR(ExpectInt32(at, "output_row", packed.output_row, choices));
  const PackRowsArgs args = {.blocks = blocks,
                             .x = x.raw(),
                             .x_stride_bytes = x.row_stride() * DTypeBytes(x.dtype()),
                             .rows = rows,
                             .top_k = routes.places.rank_of.dim(1),
                             .rank_of = routes.places.rank_of.data<int32_t>(),
                             .slot_of = routes.places.slot_of.data<int32_t>(),
                             .first_of = routes.places.first_of.data<int32_t>(),
                             .row_offsets = routes.rows.offsets.data<int32_t>(),
                             .row_pos = routes.rows.slot_row.data<int32_t>(),
                             .pair_offsets = routes.pairs.offsets.data<int32_t>(),
                             .pair_pos = routes.pairs.slot_row.data<int32_t>(),
                             .send = packed.send.raw(),
                             .own = packed.own.raw(),
                             .first_output = static_cast<int32_t>(packed.first_output),
                             .output_row = packed.output_row.data<int32_t>()};
  if (at.device.is_cpu()) return PackRowsOnCpu(stream, args);
  return RunOnCuda("exchange", stream, &CudaKernelTable::pack_rows, args);
}

absl::Status ReadPairs(const Stream& stream, const RowBlocks& blocks, const ExpertPlaces& places,
                       const TensorView& received, int64_t num_slots, const TensorView& slots) {
  const OpSite at = {"exchange", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectBlocks(at, "received", received, blocks));
  RETURN_IF_ERROR(ExpectInt32(at, "slots", slots, blocks.num_pairs));
  const int64_t own = blocks.of[blocks.rank].max_pairs;
  if (own != places.rank_of.NumElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: ", places.rank_of.NumElements(), " choices where this rank's own block has ", own));
  }
  const ReadPairsArgs args = {.blocks = blocks,
                              .received = received.raw(),
                              .rank_of = places.rank_of.data<int32_t>(),
                              .slot_of = places.slot_of.data<int32_t>(),
                              .num_slots = num_slots,
                              .slots = slots.data<int32_t>()};
  if (at.device.is_cpu()) return ReadPairsOnCpu(args);
  return RunOnCuda("exchange", stream, &CudaKernelTable::read_pairs, args);
}

absl::Status PlacePairs(const Stream& stream, const RowBlocks& blocks, int64_t top_k, const TensorView& received,
                        const PairPlaces& places) {
  const OpSite at = {"exchange", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(ExpectBlocks(at, "received", received, blocks));
  RETURN_IF_ERROR(ExpectInt32(at, "y_row", places.y_row, blocks.num_pairs));
  RETURN_IF_ERROR(ExpectInt32(at, "x_rows", places.x_rows, places.x_rows.NumElements()));
  RETURN_IF_ERROR(ExpectInt32(at, "output_row", places.output_row, blocks.of[blocks.rank].max_pairs));
  const PlacePairsArgs args = {.blocks = blocks,
                               .received = received.raw(),
                               .top_k = top_k,
                               .y_row = places.y_row.data<int32_t>(),
                               .x_rows = places.x_rows.data<int32_t>(),
                               .output_row = places.output_row.data<int32_t>()};
  if (!at.device.is_cpu()) return RunOnCuda("exchange", stream, &CudaKernelTable::place_pairs, args);
  PlacePairsOnCpu(args);
  return absl::OkStatus();
}

}  // namespace switchyard::ops
