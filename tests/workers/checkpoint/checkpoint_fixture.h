// Small checkpoints with contents that are a function of their step, written by several ranks, and compared whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/checkpoint_writer.h"
#include "workers/checkpoint/manifest/find_checkpoint.h"

namespace switchyard::checkpoint {

// Begin, WriteFiles on `world` ranks, Commit.
absl::Status SaveStep(FileSystem* files, CheckpointWriter* writer, int64_t step, int world = 2, int64_t kept_step = 0);
// Opens a writer, saves the steps, closes it.
absl::Status SaveSteps(FileSystem* files, const CheckpointWriterOptions& options, const std::vector<int64_t>& steps);
// Whether the checkpoint has the tensors that SaveStep wrote for its step.
testing::AssertionResult HoldsItsStep(FileSystem* files, const FoundCheckpoint& found);

}  // namespace switchyard::checkpoint
