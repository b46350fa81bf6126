// The norm of a step's gradients, after their sums over the ranks.
//
// What every rank has and each expert count once: each group of ranks that has all experts has them with the same bits.
// Frozen weights and routers' biases do not count.  Where dense state is sharded (dense_shards.h), a rank computes
// the norm's blocks of its elements alone, and all add up all blocks in one order: the same bits as without.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/tensor/device.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer_group.h"

namespace switchyard::train {

// Collective, in class all_reduce.  Errors: the communicator's.
absl::StatusOr<double> GradientNorm(const Stream& stream, const Parameters& parameters, const TrainerGroup& group,
                                    absl::Time deadline);

// values = Σ over the ranks of `comm`, in class all_reduce; blocks until it is done.
absl::Status SumOver(const Stream& stream, comm::Communicator* comm, const TensorView& values, absl::Time deadline);

}  // namespace switchyard::train
