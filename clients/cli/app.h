// Entry point of the program `switchyard` without its process: arguments and streams in, exit code out.  Tests call it
// in their own process.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/console.h"

namespace switchyard::cli {

// Runs the command that `args` (without the program's name) name; returns the exit code, which is not 0 if console.out
// could not be written.
int RunCli(const std::vector<std::string>& args, Console& console);

}  // namespace switchyard::cli
