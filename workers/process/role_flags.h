// What a worker's flags (main.cc) say of its role: checks, and what they set.
#pragma once

#include <optional>
#include <string>

#include "workers/serving/worker.h"

namespace switchyard {

enum class WorkerRole { kServe, kTrain, kBoth };
// --role: null if it is none.
std::optional<WorkerRole> RoleFlag();

// All problems of the flags of that role, one a line; empty if there are none.
std::string CheckRoleFlags(WorkerRole role);

// REQUIRES: a role that serves, and CheckRoleFlags found nothing.  Without threads and form_device_group.
WorkerOptions ServingOptions();

}  // namespace switchyard
