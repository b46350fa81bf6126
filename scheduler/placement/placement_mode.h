// How the experts of a running server are placed: the modes that can be chosen, by name.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::placement {

enum class PlacementMode {
  kStatic,       // "static": E / R experts a device, no replicas (the paper's baseline)
  kStaticSpare,  // "static+spare": replicas spread evenly once, rows split by counts, nothing moves
  kLina,         // "lina": the paper: device 0 places by the estimate, and anew where the gate says otherwise
  kAgreed,       // "agreed": every rank decides alike; alias placement, split by counts, moves that pay
  kIdeal,        // "ideal": the gate is forced to be balanced (by the caller); otherwise static
  kNoEstimate,   // "no_estimate": lina without phase 1
  kNoFinetune,   // "no_finetune": lina without phase 2
  kAuto,         // "auto": in those steps where that was measured to be faster (step_choices.h) agreed, or, without
                 // spare slots and on one machine, each rank computes its own rows; else static
};

absl::string_view NameOf(PlacementMode mode);
// Whether all slots are the per-step balancer's, as in the paper: such a mode has no residents.
bool IsPaper(PlacementMode mode);
// Whether its decisions use estimates of coming layers, where there are any, when it serves.
bool UsesEstimates(PlacementMode mode);
// "static, static+spare, ...": all names.
std::string PlacementModeNames();
// InvalidArgument lists the names.
absl::StatusOr<PlacementMode> ParsePlacementMode(absl::string_view name);

}  // namespace switchyard::placement
