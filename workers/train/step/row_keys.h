// The keys of a micro-batch's rows, of which dropout's random numbers are functions (ops/dropout/counter_random.h).
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/train/step/train_rows.h"

namespace switchyard::train {

// [T] of rows in step `step` of a job: by the place of its sequence in the step's batch, and its position there, which
// documents do not begin anew.  Of packed rows without begins all are of one sequence.
std::vector<uint64_t> RowKeysOf(const TrainRows& rows, uint64_t seed, int64_t step);

}  // namespace switchyard::train
