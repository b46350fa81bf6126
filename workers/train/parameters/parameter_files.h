// Saves a rank's parameters as files of a checkpoint (workers/checkpoint/FORMAT.md), and restores them.
//
// model-0000i-of-0000N.safetensors has weights by HuggingFace's names, one tensor an expert, so the folder loads as a
// model; optimizer-rank00000.safetensors has NAME.master, NAME.exp_avg and NAME.exp_avg_sq in AccDType, of a frozen
// block's parts (parameters.h) the first alone.  Rank 0 writes the replicated parameters, the rank with an expert's
// first replica writes the expert; of sharded dense state each rank writes whole tensors, at most the largest one's
// bytes more than an even share (shard_stream.h); readers do not depend on that.  In each file experts are the last,
// and the ranks exchange nothing more once one writes its experts' masters and moments.  Of a model with adapters they
// alone are written, and instead of model-… there is rank 0's adapter_model.safetensors, in fp32, as PEFT has it, but
// for the adapters of experts, which the caller adds to it (expert_adapter_tensors.h); another rank has the optimizer's
// file of its experts' adapters, or nothing.  Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/safetensors/shard_table.h"
#include "workers/tensor/dtype.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/shard_stream.h"

namespace switchyard::train {

inline constexpr char kAdapterFile[] = "adapter_model.safetensors";

// How the weights are written that are no masters.
struct WeightsForm {
  WeightsForm(DType dtype, bool adapters = false) : dtype(dtype), adapters(adapters) {}  // NOLINT: a dtype is one
  DType dtype;                                                                           // rounded to nearest even
  bool adapters = false;                                                                 // the model has adapters
};

// This rank's files.  Borrows the masters and moments of the blocks (of a Parameters or a snapshot), which must stay as
// they are until the files are written.  shards: has the values of blocks that are sharded, with_weights, which
// need not be there for the files' sizes; borrowed.
std::vector<checkpoint::CheckpointFile> ParameterFiles(absl::Span<const ParameterBlock> blocks, int rank, int world,
                                                       const WeightsForm& form, ShardStream* shards = nullptr);
// Whether a rank writes a block: rank 0 the replicated ones, but its `writer` one that is sharded; the rank with an
// expert's first replica the expert's; none writes what lies beneath adapters.
bool WritesBlock(const ParameterBlock& block, int rank);

// Restores masters and moments from the optimizer's files; does not publish.  InvalidArgument 'tensor "x": …' for one
// that is missing or has another shape or dtype; then only some are restored.
absl::Status RestoreParameters(const checkpoint::ShardTable& optimizer, Parameters* parameters,
                               const checkpoint::OnRead& on_read = nullptr);

}  // namespace switchyard::train
