// A command of the CLI, and what all commands share: flags, how they find the server, how they report errors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/console.h"
#include "clients/cli/json_fwd.h"
#include "proto/support/channel_tls.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard::client {
class Client;
}  // namespace switchyard::client

namespace switchyard::cli {

// Writes "switchyard: <what, and what to do next>" to err; returns kExitUsage for bad input, else kExitFailed.
int Complain(Console& console, const absl::Status& status);
// Returns the result's code; reports an error and returns the error's code.
int ExitCodeOf(Console& console, const absl::StatusOr<int>& result);

// A node of the tree of commands: `switchyard`, `switchyard train`, `switchyard train submit`.
class Command {
 public:
  // Returns the exit code, or an error that has not been reported yet.
  using RunFn = std::function<absl::StatusOr<int>(Console&)>;

  Command(std::string name, std::string summary) : name_(std::move(name)), summary_(std::move(summary)) {}

  Command* AddCommand(std::string name, std::string summary);
  FlagSet* flags() { return &flags_; }
  const FlagSet& flags() const { return flags_; }
  // Text at the end of --help: examples, and what a user must know.
  void SetFooter(std::string text) { footer_ = std::move(text); }
  // Sets what the command does.  A command without it only groups others: users must name one of them.
  void SetRun(RunFn run) { run_ = std::move(run); }

  // Null if it has no command of that name.
  Command* Find(absl::string_view name) const;
  bool HasRun() const { return run_ != nullptr; }
  int Run(Console& console) const { return ExitCodeOf(console, run_(console)); }
  // `path`: the names of the commands above this one.
  std::string Help(absl::string_view path) const;
  std::vector<std::string> CommandNames() const;
  const std::string& name() const { return name_; }
  const std::vector<std::unique_ptr<Command>>& commands() const { return commands_; }

 private:
  const std::string name_, summary_;
  FlagSet flags_;
  std::string footer_;
  RunFn run_;
  std::vector<std::unique_ptr<Command>> commands_;
};

void AddGenerateCommand(Command* app);
void AddChatCommand(Command* app);
void AddTokenizeCommand(Command* app);
void AddDetokenizeCommand(Command* app);
void AddStatusCommand(Command* app);
void AddExpertsCommand(Command* app);
void AddPlanCommand(Command* app);
void AddBenchCommand(Command* app);
void AddTraceCommand(Command* app);
void AddProfileCommand(Command* app);
void AddTrainCommand(Command* app);
void AddDataCommand(Command* app);
void AddKeysCommand(Command* app);
void AddQuantizeCommand(Command* app);
void AddCompletionCommand(Command* app);

inline constexpr char kAdminServer[] = "127.0.0.1:50052";  // where commands of jobs and administration call

struct ServerFlags {
  std::string server = "127.0.0.1:50051";
  double timeout_seconds = 300;        // of a stream; of every call if the flag is given
  const Flag* timeout_flag = nullptr;  // null before AddTo
  rpc::TlsFiles tls;
  std::string api_key_file;  // empty: the key, if any, is in the environment variable SWITCHYARD_API_KEY

  // Adds the flags under their own title in --help.
  void AddTo(FlagSet* flags);
  absl::StatusOr<std::unique_ptr<client::Client>> Connect() const;
};

// {"code", "reason", "message", "retry_after_seconds"?, "metadata"?} for "error" of a JSON line.
Json ErrorJson(const absl::Status& status);

// An error in what the user gave: flags or input.
absl::Status BadInput(absl::string_view message);

}  // namespace switchyard::cli
