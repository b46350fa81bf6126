// Makes the text that --help prints of flags: under the titles of their groups, in the order of the table, wrapped to
// the terminal.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

// Columns of the terminal that standard output is, within what reads well; else as many as fit most terminals.
size_t HelpColumns();

// Names on the left, what they are for on the right.  A group whose title is empty is left out.
std::string FlagsHelp(const FlagSet& flags, size_t columns);

// One entry of such a list: `name` in a column that is `left` wide, or on a line of its own where it is longer.
std::string HelpEntry(absl::string_view name, absl::string_view text, size_t left, size_t columns);

}  // namespace switchyard
