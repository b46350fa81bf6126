#include "scheduler/placement/placement_settings.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::placement {
namespace {

void CheckRange(absl::string_view flag, int64_t value, int64_t most, std::vector<std::string>* problems) {
  if (value >= 0 && value <= most) return;
  problems->push_back(absl::StrCat("--", flag, "=", value, ": must be within [0, ", most, "]"));
}

}  // namespace

absl::Status CheckPlacementSettings(const PlacementSettings& settings) {
  std::vector<std::string> problems;
  const std::string mode = absl::StrCat("--placement=", NameOf(settings.mode));
  CheckRange("spare_slots", settings.spare_slots, PlacementSettings::kMaxSlots, &problems);
  if (settings.mode == PlacementMode::kIdeal) {
    problems.push_back(absl::StrCat(mode, ": is for benchmarks; a server cannot choose what the gate will say"));
  }
  if (settings.mode == PlacementMode::kStatic && settings.spare_slots > 0) {
    problems.push_back(absl::StrCat("--spare_slots=", settings.spare_slots, ": ", mode, " has no replicas"));
  }
  if (settings.mode != PlacementMode::kStatic && settings.mode != PlacementMode::kAuto && settings.spare_slots == 0) {
    problems.push_back(absl::StrCat(mode, ": wants --spare_slots=1 or more"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

absl::Status CheckExpertMemory(const PlacementSettings& settings, absl::string_view share) {
  if (share.empty() || !settings.has_slots()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--expert_memory=", share, ": excludes --placement=", NameOf(settings.mode),
                   " --spare_slots=", settings.spare_slots, ": a replica would take the room of another expert"));
}

absl::Status CheckSlots(const PlacementSettings& settings, int num_experts, int num_devices) {
  const int own = (num_experts + num_devices - 1) / num_devices;  // of the worker with the most experts
  if (num_devices == 1 || settings.spare_slots <= num_experts - own) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--placement=", NameOf(settings.mode), ": --spare_slots=", settings.spare_slots,
      ": a worker would have so many experts of each layer beside its own, but one of ", num_devices, " workers has ",
      own, " of the ", num_experts, " by itself: ", num_experts - own, " others at most"));
}

int ExpertsOfLayer(const PlacementSettings& settings, int num_experts, int num_devices) {
  return (num_experts + num_devices - 1) / num_devices + settings.spare_slots;
}

}  // namespace switchyard::placement
