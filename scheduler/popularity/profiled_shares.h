// What a profile says of how popular experts are, for who has to begin with something: the slots of an expert budget.
//
// By the decoded rows of a layer where enough of them were counted, at least kDecodedPerExpert for each expert, as a
// prompt's rows need nearly every expert and leave a cache no choice; else by all rows.
// Pure.  Does not do: paths, tokens, what is needed next (load_predictor.h).
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/popularity/profile_bundle.h"

namespace switchyard::popularity {

inline constexpr int64_t kDecodedPerExpert = 16;

// [L * E] shares of each layer's rows, kRow a layer; alike where nothing was counted.
std::vector<int64_t> ProfiledShares(const ProfileBundle& bundle);

}  // namespace switchyard::popularity
