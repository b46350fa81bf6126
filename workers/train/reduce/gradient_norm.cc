#include "workers/train/reduce/gradient_norm.h"

#include <cmath>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/optimizer/adamw.h"

namespace switchyard::train {
namespace {

int64_t NormBlocksOf(const ElementRange& range) { return (range.count + ops::kNormBlock - 1) / ops::kNormBlock; }

bool Counts(const ParameterBlock& block) { return block.by_gradient && !block.frozen; }

// Sums of the norm's blocks of what is sharded, in the order of the blocks of parameters: of all ranks.
absl::StatusOr<std::vector<double>> ShardedSums(const Stream& stream, const Parameters& parameters,
                                                comm::Communicator* world, absl::Time deadline) {
  std::vector<double> sums;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (!Counts(block) || !block.is_sharded()) continue;
    for (const TrainedPart& part : TrainedPartsOf(block)) {
      const size_t first = sums.size();
      sums.resize(first + static_cast<size_t>(NormBlocksOf(part.elements)));
      const ElementRange here = Intersect(part.elements, block.own());
      if (here.count == 0) continue;
      const int64_t before = here.begin - part.elements.begin;
      SY_CHECK_EQ(before % ops::kNormBlock, 0);
      RETURN_IF_ERROR(ops::SumsOfSquares(
          stream, block.GradientAt(here),
          absl::MakeSpan(sums).subspan(first + before / ops::kNormBlock, static_cast<size_t>(NormBlocksOf(here)))));
    }
  }
  // (Of each only one rank's is not 0.)
  const auto count = static_cast<int64_t>(sums.size());
  RETURN_IF_ERROR(SumOver(stream, world, TensorView(sums.data(), DType::kF64, {count}), deadline));
  return sums;
}

}  // namespace

absl::Status SumOver(const Stream& stream, comm::Communicator* comm, const TensorView& values, absl::Time deadline) {
  if (comm->world() == 1 || values.NumElements() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      comm->AllReduceSum({.stream = &stream, .comm_class = comm::CommClass::kAllReduce, .deadline = deadline}, values));
  return work->Wait();
}

absl::StatusOr<double> GradientNorm(const Stream& stream, const Parameters& parameters, const TrainerGroup& group,
                                    absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::vector<double> sharded, ShardedSums(stream, parameters, group.world, deadline));
  auto next = sharded.begin();
  double replicated = 0, experts = 0;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (!Counts(block)) continue;
    for (const TrainedPart& part : TrainedPartsOf(block)) {
      double sum = 0;
      if (block.is_sharded()) {
        for (int64_t i = 0; i < NormBlocksOf(part.elements); ++i) sum += *next++;
      } else {
        ASSIGN_OR_RETURN(sum, ops::SumOfSquares(stream, block.GradientAt(part.elements)));
      }
      (block.shard == model::Shard::kReplicated ? replicated : experts) += sum;
    }
  }
  RETURN_IF_ERROR(SumOver(stream, group.experts, TensorView(&experts, DType::kF64, {1}), deadline));
  return std::sqrt(replicated + experts);
}

}  // namespace switchyard::train
