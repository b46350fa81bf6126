// What the ranks of a job choose by measuring before its first step (workers/train/job), for benches of trainers.
// Collective; rank 0 says on stderr what was measured.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/train/step/trainer.h"

namespace switchyard::bench {

// Bytes of pieces of sums.
absl::StatusOr<int64_t> ChoosePieceBytes(comm::Communicator* comm, absl::Duration patience);
// Sets the trainer's number of chunks.
absl::Status ChooseChunks(comm::Communicator* comm, train::Trainer* trainer, absl::Duration patience);

}  // namespace switchyard::bench
