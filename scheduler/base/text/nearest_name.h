// Finds the known name that is nearest to a misspelled one.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard {

// Letters to add, drop or replace until one is the other.
size_t EditDistance(absl::string_view a, absl::string_view b);

// The candidate that is the fewest edits away, or "" if none is close.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace switchyard
