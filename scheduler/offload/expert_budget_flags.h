// The flags of an expert budget, which server and worker have alike.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"
#include "scheduler/offload/expert_budget.h"

namespace switchyard::offload {

// `whose` experts: "this worker".  All of them get `marks`.
void AddExpertBudgetFlags(ExpertBudgetOptions* options, absl::string_view whose, uint32_t marks, FlagSet* flags);

}  // namespace switchyard::offload
