// How popular experts are by a profile: what the slots of an expert budget begin with.
//
// By the decoded rows of a layer where at least 16 for each expert were counted, as a prompt's rows need
// nearly every expert and leave a cache no choice; else by all rows.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/popularity/profile_bundle.h"

namespace switchyard::popularity {

// [L * E] shares of each layer's rows, kRow a layer; alike where nothing was counted.
std::vector<int64_t> ProfiledShares(const ProfileBundle& bundle);

}  // namespace switchyard::popularity
