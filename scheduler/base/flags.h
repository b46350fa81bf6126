// Command lines of our programs over Abseil's flags: every problem at once, a nearest name for a misspelled flag, exit
// code 2, and a help page that is only about our own flags.
#pragma once

#include "absl/strings/string_view.h"

namespace switchyard {

struct ProgramHelp {
  absl::string_view name;     // "switchyard-server"
  absl::string_view version;  // "0.1.0"
  absl::string_view summary;  // one or more lines
  absl::string_view file;     // the flags shown are those defined in a file that ends so: "server/main.cc"
};

// Sets the flags.  Prints and exits: 0 for --help and --version, 2 for what it cannot take.  `--name=value`,
// `--name value`, `--bool` and `--nobool` are taken; other arguments are errors.
void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help);

// The candidate that is closest to `name` by edits, or "" if none is close.
absl::string_view NearestName(absl::string_view name, const absl::string_view* begin, const absl::string_view* end);

}  // namespace switchyard
