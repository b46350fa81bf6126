#include "scheduler/offload/expert_budget_flags.h"

#include "absl/strings/str_cat.h"

namespace switchyard::offload {

void AddExpertBudgetFlags(ExpertBudgetOptions* options, absl::string_view whose, uint32_t marks, FlagSet* flags) {
  flags->BeginGroup("Experts");
  flags
      ->Add("expert_budget=SHARE", &options->budget,
            absl::StrCat("how many of its experts, replicas among them, ", whose,
                         " holds where it computes, of all layers together: a share (25%) or bytes; the others are "
                         "copied when they are needed, from a file that the machine's workers share; empty = all"))
      .Mark(marks);
  flags
      ->Add("expert_policy=NAME", &options->policy,
            "with --expert_budget: who goes when another expert comes: auto (the fastest of the others as traffic "
            "goes), expected_use, lru, lfu, static")
      .Mark(marks);
  flags
      ->Add("expert_file_dir=DIR", &options->file_dir,
            "with --expert_budget, or a server's --placement other than static: directory of the file with all "
            "experts, packed; kept for the next start, in memory until another model's is made there")
      .Mark(marks);
  flags
      ->Add("cold_experts=NAME", &options->cold,
            "on GPUs with --expert_budget: copy = experts that are in no slot are copied to one; host = their rows may "
            "also be computed where their weights are, by the CPU, when that is cheaper: it takes a second copy of the "
            "experts in memory, and answers may differ by what is in slots")
      .Mark(marks);
  flags->BeginGroup("Debugging");
  flags
      ->Add("expert_copy_bytes_per_second", &options->copy_bytes_per_second,
            "for tests and benchmarks: experts come no faster than over a link of this rate; 0 = as fast as they can")
      .Mark(marks);
}

}  // namespace switchyard::offload
