#include "server/keys/roles.h"

#include <algorithm>
#include <iterator>

namespace switchyard::server {
namespace {

constexpr absl::string_view kRoleNames[] = {"user", "trainer", "admin"};  // by Role

constexpr MethodRole kLeastRoles[] = {
    {"InferenceService/Generate", Role::kUser},
    {"InferenceService/Abort", Role::kUser},  // of requests of its own
    {"InferenceService/Tokenize", Role::kUser},
    {"InferenceService/Detokenize", Role::kUser},
    {"InferenceService/GetModelInfo", Role::kUser},
    {"InferenceService/GetLoad", Role::kUser},
    {"TrainingService/SubmitJob", Role::kTrainer},
    {"TrainingService/GetJob", Role::kTrainer},  // this and the rest of jobs: of its own
    {"TrainingService/ForkJob", Role::kTrainer},
    {"TrainingService/ListJobs", Role::kTrainer},
    {"TrainingService/WatchJob", Role::kTrainer},
    {"TrainingService/PauseJob", Role::kTrainer},
    {"TrainingService/ResumeJob", Role::kTrainer},
    {"TrainingService/CancelJob", Role::kTrainer},
    {"TrainingService/DeleteJob", Role::kTrainer},
    {"TrainingService/PackData", Role::kTrainer},
    {"AdminService/GetExperts", Role::kAdmin},  // these show what is asked of the model
    {"AdminService/GetProfile", Role::kAdmin},
    {"AdminService/GetPlan", Role::kAdmin},
};

}  // namespace

absl::string_view NameOf(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Role> ParseRole(absl::string_view name) {
  const auto* const at = std::find(std::begin(kRoleNames), std::end(kRoleNames), name);
  if (at == std::end(kRoleNames)) return std::nullopt;
  return static_cast<Role>(at - std::begin(kRoleNames));
}

absl::Span<const MethodRole> MethodRoles() { return kLeastRoles; }

std::optional<Role> LeastRoleOf(absl::string_view method) {
  for (const MethodRole& row : kLeastRoles) {
    if (row.method == method) return row.least;
  }
  return std::nullopt;
}

}  // namespace switchyard::server
