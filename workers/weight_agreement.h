// Whether the ranks of a group have loaded the same bytes: headers and sizes, which workers compare when they register,
// say nothing of values.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "workers/comm/rendezvous_store.h"
#include "workers/model/loader.h"

namespace switchyard {

// `mine`: sums of what every rank has, by tensor.  Every rank of the group calls it once it has loaded; ranks tell each
// other one sum of all, and those of each tensor only if that differs.
// Errors: DataLoss that names two ranks and a tensor; the store's.
absl::Status AgreeOnWeights(int rank, int world, const TensorSums& mine, RendezvousStore* store, absl::Time deadline);

}  // namespace switchyard
