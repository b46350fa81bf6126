#include "scheduler/offload/expert_budget.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/memory_share.h"

namespace switchyard::offload {

absl::StatusOr<OffloadKind> ParseExpertPolicy(absl::string_view name) {
  if (name == "auto") return OffloadKind::kExpectedUse;
  if (name == "lru") return OffloadKind::kLru;
  return absl::InvalidArgumentError("must be auto or lru");
}

absl::Status CheckExpertBudget(const ExpertBudgetOptions& options) {
  std::vector<std::string> problems;
  if (!options.empty() && !options.automatic()) {
    if (const absl::Status status = ParseMemoryShare(options.budget).status(); !status.ok()) {
      problems.push_back(absl::StrCat("--expert_memory=", options.budget, ": ", status.message()));
    }
  }
  if (const absl::Status status = ParseExpertPolicy(options.policy).status(); !status.ok()) {
    problems.push_back(absl::StrCat("--expert_policy=", options.policy, ": ", status.message()));
  }
  for (const auto& [name, value] : {std::pair{"expert_copy_bytes_per_second", options.copy_bytes_per_second},
                                    {"expert_weights_us", options.weights_us},
                                    {"expert_row_us", options.row_us}}) {
    if (value >= 0 && !std::isinf(value)) continue;
    problems.push_back(absl::StrCat("--", name, "=", value, ": must not be negative or endless"));
  }
  if (options.cold != "copy" && options.cold != "host")
    problems.push_back(absl::StrCat("--cold_experts=", options.cold, ": must be copy or host"));
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

absl::Status CheckColdExperts(const ExpertBudgetOptions& options, bool on_cpu, bool deterministic) {
  std::vector<std::string> problems;
  if (!options.cold_on_host()) return absl::OkStatus();
  if (on_cpu) problems.push_back("--cold_experts=host: is for GPUs, but --device=cpu");
  if (deterministic) {
    problems.push_back(
        "--cold_experts=host: bits depend on which experts are in slots then, which --deterministic forbids");
  }
  if (options.empty()) problems.push_back("--cold_experts=host: is for --expert_memory, which is not given");
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

void AddExpertBudgetFlags(ExpertBudgetOptions* options, absl::string_view whose, uint32_t marks, FlagSet* flags) {
  flags->BeginGroup("Experts");
  flags
      ->Add("expert_memory=SHARE", &options->budget,
            absl::StrCat(
                "without --spare_slots: how many of its experts ", whose,
                " holds where it computes, of all layers together: a share (25%), bytes (6GiB), or auto = what the "
                "machine's memory or the control group leaves (CPUs); the others come when they are needed, from a "
                "file that the machine's workers share: on a disk "
                "for CPUs, so that a model may be larger than memory; empty = all"))
      .Alias("expert_budget")
      .Mark(marks);
  flags
      ->Add("expert_policy=NAME", &options->policy,
            "with --expert_memory: who goes when another expert comes: auto (the one whose next use is expected last), "
            "or lru (the one used least recently), to compare with")
      .Mark(marks);
  flags
      ->Add("expert_file_dir=DIR", &options->file_dir,
            "with --expert_memory, or a server's --spare_slots: directory of the file with all "
            "experts, packed, which the first start makes and later ones find (in memory: until another model's is "
            "made); empty = ~/.cache/switchyard/experts for CPUs with --expert_memory, else /dev/shm")
      .Mark(marks);
  flags
      ->Add("cold_experts=NAME", &options->cold,
            "on GPUs with --expert_memory: copy = experts that are in no slot are copied to one; host = their rows may "
            "also be computed where their weights are, by the CPU, when that is cheaper: it takes a second copy of the "
            "experts in memory, and answers may differ by what is in slots")
      .Mark(marks);
  flags->BeginGroup("Debugging");
  flags
      ->Add("expert_copy_bytes_per_second", &options->copy_bytes_per_second,
            "for tests and benchmarks: experts come no faster than over a link of this rate; 0 = as fast as they can")
      .Mark(marks);
  flags
      ->Add("expert_weights_us", &options->weights_us,
            "for benchmarks, on CPUs: an expert's products take at least these microseconds, as on a machine that "
            "needs so long to read its weights")
      .Mark(marks);
  flags
      ->Add("expert_row_us", &options->row_us,
            "for benchmarks, on CPUs: an expert's products take at least so many microseconds for each of its rows")
      .Mark(marks);
}

}  // namespace switchyard::offload
