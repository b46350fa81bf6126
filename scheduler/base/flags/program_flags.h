// The flags of a program that has no commands: from its command line, from environment variables and from a file
// (flag_sources.h), with every problem at once, exit code 2, --help, --version, --completion and --config.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

struct ProgramHelp {
  absl::string_view name;     // "switchyard-server"
  absl::string_view version;  // Version()
  absl::string_view summary;  // one or more lines
  // With a flag of these marks on the command line there is no other source: another program says all that it means,
  // and the variables are its own.
  uint32_t alone_with = 0;
};

// Sets the flags' variables.  Prints and exits: 0 for --help, --version and --completion, 2 for what it cannot take.
void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help, FlagSet* flags);

}  // namespace switchyard
