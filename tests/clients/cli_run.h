// Runs the CLI in this process.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "clients/cli/app.h"

namespace switchyard::client {

struct CliRun {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline CliRun RunCliWith(const std::vector<std::string>& args, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  cli::Console console = {in, out, err, /*interactive=*/false};
  const int exit_code = cli::RunCli(args, console);
  return {exit_code, out.str(), err.str()};
}

}  // namespace switchyard::client
