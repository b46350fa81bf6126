// The program `switchyard`, less its process: arguments and streams in, exit code out.  Tests call it so.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/console.h"

namespace switchyard::cli {

// `args` without the program's name.
int RunCli(const std::vector<std::string>& args, Console& console);

}  // namespace switchyard::cli
