// The command line of a program that has flags alone: every problem at once, exit code 2, --help and --version.
#pragma once

#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

struct ProgramHelp {
  absl::string_view name;     // "switchyard-server"
  absl::string_view version;  // Version()
  absl::string_view summary;  // one or more lines
};

// Sets the flags' variables.  Prints and exits: 0 for --help and --version, 2 for what it cannot take.
void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help, FlagSet* flags);

}  // namespace switchyard
