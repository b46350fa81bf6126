// switchyard: the command line client.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "clients/cli/app.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/version.h"

int main(int argc, char** argv) {
  // gRPC would print its own lines about connections that fail, which our messages explain.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  switchyard::rpc::SetUpLibraries();
  std::ios::sync_with_stdio(false);
  // Unties the streams: reading a line, or printing an error, would flush output that another thread is writing.
  std::cin.tie(nullptr);
  std::cerr.tie(nullptr);
  switchyard::cli::Console console = {
      std::cin, std::cout, std::cerr, isatty(STDIN_FILENO) != 0, isatty(STDOUT_FILENO) != 0, switchyard::Version()};
  return switchyard::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc), console);
}
