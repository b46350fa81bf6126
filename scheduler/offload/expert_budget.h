// What flags say of an expert budget, and whether it can be.  Plain data; who makes slots of it:
// workers/rank_experts.h.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/offload/rule_policy.h"

namespace switchyard {

struct ExpertBudgetOptions {
  std::string budget;                   // as ParseMemoryShare; empty: every expert is resident, and no slots are made
  std::string policy = "expected_use";  // or lru, lfu, static
  std::string file_dir = "/dev/shm";    // of the file with all experts
  double copy_bytes_per_second = 0;     // > 0: an emulated link
  bool empty() const { return budget.empty(); }
};

// The rule of that name; none for expected_use (ExpectedUsePolicy).  InvalidArgument: another name.
absl::StatusOr<std::optional<RulePolicy::Rule>> ParseExpertPolicy(absl::string_view name);

// InvalidArgument: every option that cannot be, one a line, named as the flags.
absl::Status CheckExpertBudget(const ExpertBudgetOptions& options);

}  // namespace switchyard
