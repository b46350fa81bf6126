#include "scheduler/placement/placement_mode.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::placement {
namespace {

constexpr std::array<absl::string_view, 8> kModeNames = {"static", "static+spare", "lina",        "agreed",
                                                         "ideal",  "no_estimate",  "no_finetune", "auto"};

}  // namespace

absl::string_view NameOf(PlacementMode mode) { return kModeNames[static_cast<size_t>(mode)]; }

bool IsPaper(PlacementMode mode) {
  return mode == PlacementMode::kLina || mode == PlacementMode::kNoEstimate || mode == PlacementMode::kNoFinetune;
}

bool UsesEstimates(PlacementMode mode) { return mode == PlacementMode::kLina || mode == PlacementMode::kNoFinetune; }

std::string PlacementModeNames() { return absl::StrJoin(kModeNames, ", "); }

absl::StatusOr<PlacementMode> ParsePlacementMode(absl::string_view name) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames[i] == name) return static_cast<PlacementMode>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("placement mode \"", name, "\" is none of ", PlacementModeNames()));
}

}  // namespace switchyard::placement
