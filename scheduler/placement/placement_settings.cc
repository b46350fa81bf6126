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

// Whether the background balancer may change its placement: residents stay, and rows are split over all replicas.
bool HasResidents(PlacementMode mode) {
  return mode == PlacementMode::kStaticSpare || mode == PlacementMode::kAgreed || mode == PlacementMode::kAuto;
}

}  // namespace

absl::Status CheckPlacementSettings(const PlacementSettings& settings) {
  std::vector<std::string> problems;
  const std::string mode = absl::StrCat("--placement=", NameOf(settings.mode));
  CheckRange("spare_slots", settings.spare_slots, PlacementSettings::kMaxSlots, &problems);
  CheckRange("replica_slots", settings.replica_slots, PlacementSettings::kMaxSlots, &problems);
  CheckRange("rebalance_steps", settings.rebalance_steps, PlacementSettings::kMaxRebalanceSteps, &problems);
  if (settings.mode == PlacementMode::kOracle || settings.mode == PlacementMode::kIdeal) {
    problems.push_back(
        absl::StrCat(mode, ": is for benchmarks; a server cannot know or choose what the gate will say"));
  }
  if (settings.mode == PlacementMode::kStatic && settings.spare_slots > 0) {
    problems.push_back(absl::StrCat("--spare_slots=", settings.spare_slots, ": ", mode, " has no replicas"));
  }
  if (settings.mode != PlacementMode::kStatic && settings.spare_slots + settings.replica_slots == 0) {
    problems.push_back(absl::StrCat(mode, ": wants --spare_slots=1 or more"));
  }
  if (settings.rebalances() && !HasResidents(settings.mode)) {
    problems.push_back(absl::StrCat("--rebalance_steps=", settings.rebalance_steps,
                                    ": is for --placement=static+spare, agreed and auto, not for ", mode));
  }
  if (settings.replica_slots > 0 && !settings.rebalances()) {
    problems.push_back(
        absl::StrCat("--replica_slots=", settings.replica_slots, ": stay empty without --rebalance_steps"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

absl::Status CheckExpertMemory(PlacementMode mode, absl::string_view share) {
  if (share.empty() || mode == PlacementMode::kStatic) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--expert_memory=", share, ": is for --placement=static, not ",
                                                 NameOf(mode), ": a replica would take the room of another expert"));
}

absl::Status CheckSlots(const PlacementSettings& settings, int num_experts, int num_devices) {
  // `own` is of the worker with the most experts.
  const int own = ResidentSlots({}, num_experts, num_devices), more = settings.spare_slots + settings.replica_slots;
  if (num_devices == 1 || more <= num_experts - own) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--placement=", NameOf(settings.mode), ": --spare_slots=", settings.spare_slots, " and --replica_slots=",
      settings.replica_slots, " are ", more, " experts more of each layer on a worker, but one of ", num_devices,
      " workers has ", own, " of the ", num_experts, " by itself: ", num_experts - own, " others at most"));
}

int ExpertsOfLayer(const PlacementSettings& settings, int num_experts, int num_devices) {
  return ResidentSlots({}, num_experts, num_devices) + settings.replica_slots + settings.spare_slots;
}

int ResidentSlots(const PlacementSettings& settings, int num_experts, int num_devices) {
  const int per_device = (num_experts + num_devices - 1) / num_devices;
  return per_device + settings.replica_slots + (settings.rebalances() ? 1 : 0);
}

}  // namespace switchyard::placement
