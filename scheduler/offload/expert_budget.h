// The options of an expert budget, their checks, and their flags, which server and worker share.  Plain data;
// workers/serving/rank_experts.h makes slots of it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"
#include "scheduler/offload/policies/policy_kind.h"

namespace switchyard::offload {

struct ExpertBudgetOptions {
  std::string budget;                // as ParseMemoryShare, or auto; empty: all are resident, and no slots are made
  std::string policy = "auto";       // or lru
  std::string file_dir = {};         // of the file with all experts; empty: chosen (rank_expert_file.h)
  double copy_bytes_per_second = 0;  // > 0: an emulated link
  // > 0: an emulated machine: microseconds to read an expert's weights, and of a row's products (ExpertCost).
  double weights_us = 0, row_us = 0;
  std::string cold = "copy";  // or host: a GPU's experts in no slot may also run where their weights are
  bool cold_on_host() const { return cold == "host"; }
  bool empty() const { return budget.empty(); }
  bool automatic() const { return budget == "auto"; }  // what the machine's memory, or the control group's, leaves
};

// The policy of that name.  InvalidArgument: another name.
absl::StatusOr<OffloadKind> ParseExpertPolicy(absl::string_view name);

// InvalidArgument: every option that cannot be, one a line, named as the flags are.
absl::Status CheckExpertBudget(const ExpertBudgetOptions& options);
// InvalidArgument: --cold_experts=host with what it cannot go with, one a line.
absl::Status CheckColdExperts(const ExpertBudgetOptions& options, bool on_cpu, bool deterministic);

// `whose` experts: "this worker".  All flags get `marks`.
void AddExpertBudgetFlags(ExpertBudgetOptions* options, absl::string_view whose, uint32_t marks, FlagSet* flags);

}  // namespace switchyard::offload
