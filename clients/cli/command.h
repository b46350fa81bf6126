// What every subcommand shares: how it is added, how it finds the server, how it reports errors.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/console.h"
#include "clients/cli/json.h"
#include "clients/cpp/client.h"

namespace switchyard {

// Set by the subcommand that was chosen; returns the exit code.
using RunCommand = std::function<int(Console&)>;

void AddGenerateCommand(CLI::App* app, RunCommand* run);
void AddChatCommand(CLI::App* app, RunCommand* run);
void AddTokenizeCommand(CLI::App* app, RunCommand* run);
void AddDetokenizeCommand(CLI::App* app, RunCommand* run);
void AddStatusCommand(CLI::App* app, RunCommand* run);
void AddExpertsCommand(CLI::App* app, RunCommand* run);
void AddBenchCommand(CLI::App* app, RunCommand* run);
void AddTraceCommand(CLI::App* app, RunCommand* run);
void AddProfileCommand(CLI::App* app, RunCommand* run);
void AddTrainCommand(CLI::App* app, RunCommand* run);
void AddDataCommand(CLI::App* app, RunCommand* run);

struct ServerFlags {
  std::string server = "127.0.0.1:50051";
  double timeout_seconds = 300;

  void AddTo(CLI::App* app);
  absl::StatusOr<std::unique_ptr<Client>> Connect() const;
};

// Writes "switchyard: <what, and what to do next>" to err; returns kExitUsage for bad input, else kExitFailed.
int Complain(Console& console, const absl::Status& status);

// {"code", "reason", "message", "retry_after_seconds"?, "metadata"?} for "error" of a JSON line.
Json ErrorJson(const absl::Status& status);

// An error in what the user gave: flags or input.
absl::Status BadInput(absl::string_view message);

}  // namespace switchyard
