// Checks a worker's flags for its role, and makes its options of them.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "workers/process/worker_flags.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {

enum class WorkerRole { kServe, kTrain, kBoth };
// nullopt if the name is of no role.
std::optional<WorkerRole> ParseRole(absl::string_view name);

// All problems of the flags of that role, one a line; empty if there are none.  `flags`: FlagsOfWorker of `values`.
std::string CheckRoleFlags(WorkerRole role, const WorkerFlags& values, const FlagSet& flags);

// REQUIRES: a role that serves, and CheckRoleFlags found nothing.  Without threads and form_device_group.
WorkerOptions ServingOptions(const WorkerFlags& values);

}  // namespace switchyard::worker
