// The settings that server and worker, and in part switchyard-quantize, make for their own process before anything
// else.  Call from main, before other threads exist.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace switchyard {

// - no_new_privs: nothing that this process or its children run gains privileges;
// - no core dumps (they would hold weights and prompts), not even those that are piped to a handler.
// Inherited by children.
void ForbidPrivilegesAndDumps();

// The same, and the limit of open files is at least `open_files`: raised as far as this user may.
// All of it is inherited by children.  Warns when run as root.
// Returns InvalidArgument when the limit of open files cannot be raised that far; `what_for` says who needs them.
absl::Status GuardProcess(int64_t open_files, absl::string_view what_for);

}  // namespace switchyard
