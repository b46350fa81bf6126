// A rank's parameters as files of a checkpoint (workers/checkpoint/FORMAT.md), and back.
//
// model-0000i-of-0000N.safetensors has weights by HuggingFace's names, one tensor an expert, so the folder loads as a
// model; optimizer-rank00000.safetensors has NAME.master, NAME.exp_avg and NAME.exp_avg_sq in AccDType.  Rank 0 writes
// what every rank has, the rank with an expert's first replica writes the expert; readers do not depend on that.
// Thread-compatible.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/safetensors/shard_table.h"
#include "workers/tensor/dtype.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {

// This rank's two files.  Borrows the blocks' masters and moments (of a Parameters or of a snapshot of one; in memory
// or offloaded), which must stay as they are until the files are written. weights: how model-… keeps them, rounded to
// nearest even.
std::vector<checkpoint::CheckpointFile> ParameterFiles(absl::Span<const ParameterBlock> blocks, int rank, int world,
                                                       DType weights);
// Whether a rank writes a block: what every rank has is rank 0's, an expert its first replica's.
bool WritesBlock(const ParameterBlock& block, int rank);

// Masters and moments of this rank's blocks become what the optimizer's files have.  The model is not published.
// Errors: InvalidArgument 'tensor "x": …' for one that is missing or has another shape or dtype; then some are restored
// and some are not.
absl::Status RestoreParameters(const checkpoint::ShardTable& optimizer, Parameters* parameters,
                               const checkpoint::OnRead& on_read = nullptr);

}  // namespace switchyard::train
