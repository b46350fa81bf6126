// The names under which a served model is asked for: its own, and "MODEL:ADAPTER" for it with one of its adapters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/request.h"

namespace switchyard::server {

// Returns the name of the model with this adapter (batching::SlotInit::adapter); 0: the model's own.
std::string ModelName(const ServedModel& model, int32_t adapter);

// Returns the adapter that `name` asks for; 0: none, also for an empty name.  UnknownModel for any other name.
absl::StatusOr<int32_t> FindAdapter(const std::string& name, const ServedModel& model);
// Returns NOT_FOUND (MODEL_NOT_FOUND), with the names that there are.
absl::Status UnknownModel(const std::string& name, const ServedModel& model);

}  // namespace switchyard::server
