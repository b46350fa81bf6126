// The fewest copies that there can be, found by trying all of them: for tiny caches only.
#pragma once

#include <cstdint>

#include "tests/lab/offload/belady_policy.h"

namespace switchyard {

// To serve needs of one expert a gate, from slots that hold the keys of `held` (bits), of num_keys <= 32.
int FewestCopies(const NeedSequence& needs, uint32_t held, int num_keys);

}  // namespace switchyard
