// Checks that the ranks of a group have loaded the same bytes: headers and sizes, which workers compare when they
// register, say nothing of values.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/model/weights/loader.h"

namespace switchyard::worker {

// The sum, for AgreeOnWeights, of all keys and values of a model's config.json but transformers_version.  Errors: the
// file's.
absl::StatusOr<uint64_t> SumConfig(const std::string& model_dir);

// `mine`: sums of what every rank has, by tensor; `experts`: by layer, of the expert file, empty on a rank that has
// none (no budget, or no experts), which then is not compared.  Every rank of the group calls it once it has
// loaded; ranks publish one sum of each kind, and those of each tensor only if these differ.
// Errors: DataLoss that names two ranks and a tensor; the store's.
absl::Status AgreeOnWeights(int rank, int world, const model::TensorSums& mine, const model::TensorSums& experts,
                            comm::RendezvousStore* store, absl::Time deadline);

}  // namespace switchyard::worker
