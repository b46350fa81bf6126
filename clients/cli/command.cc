#include "clients/cli/command.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "clients/cli/json.h"
#include "clients/cpp/client.h"
#include "clients/cpp/client_error.h"
#include "proto/support/secret_file.h"
#include "scheduler/base/flags/help_text.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::cli {
namespace {

constexpr char kKeyVariable[] = "SWITCHYARD_API_KEY";
constexpr size_t kMostKeyFileBytes = 4096;
constexpr size_t kNamesColumn = 16;  // width of the column of names

// The lines of a footer; one of words, not an example, goes on in the next line where it is too long.
std::string Wrapped(absl::string_view text, size_t columns) {
  std::string out;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    size_t column = 0;
    const bool is_example = absl::StartsWith(line, " ");
    for (absl::string_view word : absl::StrSplit(line, ' ')) {
      const bool breaks = !is_example && column > 0 && column + 1 + word.size() > columns;
      if (word.data() != line.data()) out += breaks ? '\n' : ' ';
      column = (breaks ? 0 : column + 1) + word.size();
      absl::StrAppend(&out, word);
    }
    out += '\n';
  }
  return out;
}

// "[PROMPT]", "FILE ..."
std::string UsageOf(const FlagSet& flags) {
  std::string usage;
  for (const auto& flag : flags.flags()) {
    if (!flag->positional) continue;
    const std::string name = absl::StrCat(absl::AsciiStrToUpper(flag->name), flag->is_list ? " ..." : "");
    absl::StrAppend(&usage, " ", flag->required ? name : absl::StrCat("[", name, "]"));
  }
  return usage;
}

// Returns the key of the file, or of the environment if no file is named; "" without either.
absl::StatusOr<std::string> ReadApiKey(const std::string& file) {
  if (!file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, rpc::ReadSecretFile(file, kMostKeyFileBytes));
    const absl::string_view key = absl::StripAsciiWhitespace(text);
    if (key.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": is empty, must have an API key"));
    return std::string(key);
  }
  const char* const key = std::getenv(kKeyVariable);
  return std::string(key != nullptr ? key : "");
}

}  // namespace

Command* Command::AddCommand(std::string name, std::string summary) {
  commands_.push_back(std::make_unique<Command>(std::move(name), std::move(summary)));
  return commands_.back().get();
}

Command* Command::Find(absl::string_view name) const {
  for (const auto& command : commands_) {
    if (command->name_ == name) return command.get();
  }
  return nullptr;
}

std::vector<std::string> Command::CommandNames() const {
  std::vector<std::string> names;
  for (const auto& command : commands_) names.push_back(command->name_);
  return names;
}

std::string Command::Help(absl::string_view path) const {
  const size_t columns = HelpColumns();
  const std::string whole = absl::StrCat(path, path.empty() ? "" : " ", name_);
  std::string out = absl::StrCat(summary_, "\n\nUsage: ", whole);
  if (HasRun()) {
    absl::StrAppend(&out, UsageOf(flags_), " [--flag=value ...]\n");
    if (!commands_.empty()) absl::StrAppend(&out, "       ", whole, " COMMAND ...\n");
  } else {
    absl::StrAppend(&out, " COMMAND ...\n");
  }
  if (!commands_.empty()) out += "\nCommands:\n";
  for (const auto& command : commands_) out += HelpEntry(command->name_, command->summary_, kNamesColumn, columns);
  if (const std::string flags = FlagsHelp(flags_, columns); !flags.empty()) absl::StrAppend(&out, "\n", flags);
  if (!footer_.empty()) absl::StrAppend(&out, "\n", Wrapped(absl::StripSuffix(footer_, "\n"), columns));
  return out;
}

void ServerFlags::AddTo(FlagSet* flags) {
  flags->BeginGroup("Server");
  flags->Add("server=HOST:PORT", &server,
             absl::StrCat("the server's gRPC address",
                          server == kAdminServer ? " of jobs and administration (--admin_port)" : "",
                          "; an IPv6 one in brackets: [::1]:50051"));
  timeout_flag =
      &flags
           ->Add("timeout=SECONDS", &timeout_seconds,
                 "time limit of a request, in seconds, but not of one that watches a job; connecting has at most 5 of "
                 "them.  Without this flag a request whose answer is no stream has 30")
           .Range(0.001, 86400.0);
  flags->Add("tls", &tls.on, "connect by TLS; the server's certificate is checked by this system's CAs");
  flags->Add("tls_ca=FILE", &tls.ca, "connect by TLS; the server's certificate is checked by the CAs in this PEM file");
  flags->Add("tls_cert=FILE", &tls.cert, "own certificate (PEM), for a server that wants one (its --tls_client_ca)");
  flags->Add("tls_key=FILE", &tls.key, "key of --tls_cert (PEM), which only its owner may use");
  flags->Add(
      "api_key_file=FILE", &api_key_file,
      "file with the API key, which only its owner may use; without it the key is that of the environment variable "
      "SWITCHYARD_API_KEY, if it is set");
}

absl::StatusOr<std::unique_ptr<client::Client>> ServerFlags::Connect() const {
  client::ClientOptions options;
  options.generate_timeout = absl::Seconds(timeout_seconds);
  if (timeout_flag != nullptr && timeout_flag->times_given > 0) {
    options.call_timeout = options.generate_timeout;
    options.connect_timeout = std::min(options.connect_timeout, options.generate_timeout);
  }
  absl::StatusOr<std::string> key = ReadApiKey(api_key_file);
  if (!key.ok()) return BadInput(key.status().message());
  options.api_key = *std::move(key);
  options.tls = tls;
  return client::Client::Connect(server, options);
}

int Complain(Console& console, const absl::Status& status) {
  console.err << "switchyard: " << client::Explain(status) << std::endl;
  return client::Describe(status).reason == "BAD_INPUT" ? kExitUsage : kExitFailed;
}

int ExitCodeOf(Console& console, const absl::StatusOr<int>& result) {
  return result.ok() ? *result : Complain(console, result.status());
}

Json ErrorJson(const absl::Status& status) {
  const client::ErrorDescription error = client::Describe(status);
  Json out = {{"code", error.code}, {"reason", error.reason}, {"message", error.message}};
  if (error.retry_after > absl::ZeroDuration()) out["retry_after_seconds"] = absl::ToDoubleSeconds(error.retry_after);
  if (!error.metadata.empty()) out["metadata"] = error.metadata;
  return out;
}

absl::Status BadInput(absl::string_view message) {
  return client::ClientError(absl::StatusCode::kInvalidArgument, "BAD_INPUT", message);
}

}  // namespace switchyard::cli
