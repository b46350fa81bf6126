#include "scheduler/offload/expert_budget.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/memory_share.h"

namespace switchyard {

absl::StatusOr<std::optional<RulePolicy::Rule>> ParseExpertPolicy(absl::string_view name) {
  using Rule = RulePolicy::Rule;
  constexpr std::pair<absl::string_view, Rule> kRules[] = {
      {"lru", Rule::kLru}, {"lfu", Rule::kLfu}, {"static", Rule::kStatic}};
  for (const auto& [rule_name, rule] : kRules) {
    if (name == rule_name) return rule;
  }
  if (name == "expected_use") return std::nullopt;
  return absl::InvalidArgumentError("must be expected_use, lru, lfu or static");
}

absl::Status CheckExpertBudget(const ExpertBudgetOptions& options) {
  std::vector<std::string> problems;
  if (!options.empty()) {
    if (const absl::Status status = ParseMemoryShare(options.budget).status(); !status.ok()) {
      problems.push_back(absl::StrCat("--expert_budget=", options.budget, ": ", status.message()));
    }
  }
  if (const absl::Status status = ParseExpertPolicy(options.policy).status(); !status.ok()) {
    problems.push_back(absl::StrCat("--expert_policy=", options.policy, ": ", status.message()));
  }
  if (options.file_dir.empty()) problems.push_back("--expert_file_dir: missing; name a directory");
  if (!(options.copy_bytes_per_second >= 0) || std::isinf(options.copy_bytes_per_second)) {
    problems.push_back(absl::StrCat("--expert_copy_bytes_per_second=", options.copy_bytes_per_second,
                                    ": must not be negative or endless"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

}  // namespace switchyard
