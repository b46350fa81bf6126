#include "clients/cli/app.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "clients/cli/command.h"
#include "clients/cli/field.h"

namespace switchyard::cli {
namespace {

void AddCommands(Command* app) {
  AddGenerateCommand(app);
  AddChatCommand(app);
  AddTokenizeCommand(app);
  AddDetokenizeCommand(app);
  AddStatusCommand(app);
  AddExpertsCommand(app);
  AddPlanCommand(app);
  AddBenchCommand(app);
  AddTraceCommand(app);
  AddProfileCommand(app);
  AddTrainCommand(app);
  AddDataCommand(app);
  AddKeysCommand(app);
  AddCompletionCommand(app);
  app->SetFooter(
      "`switchyard help COMMAND` explains a command's flags.\n"
      "Exit codes: 0 done, 1 a request failed, 2 wrong flags or input.\n"
      "The server is started by: switchyard-server --model=DIR --local_workers=2");
}

// The command that the arguments name.
struct Chosen {
  Command* command;
  std::string path;  // the names of the commands above it
  absl::Span<const std::string> rest;
};

Chosen Choose(Command* app, absl::Span<const std::string> args) {
  Chosen chosen = {app, "", args};
  std::string name = "switchyard";
  while (!chosen.rest.empty()) {
    Command* next = chosen.command->Find(chosen.rest[0]);
    if (next == nullptr) break;
    absl::StrAppend(&chosen.path, chosen.path.empty() ? "" : " ", std::exchange(name, chosen.rest[0]));
    chosen.command = next;
    chosen.rest.remove_prefix(1);
  }
  return chosen;
}

// Suggests the nearest name for a wrong flag or command.
std::string Hint(const Command& app, const Chosen& chosen, const std::string& wrong) {
  std::vector<std::string> names;
  if (absl::StartsWith(wrong, "-")) {
    for (const std::string& name : chosen.command->flags()->Names()) names.push_back(absl::StrCat("--", name));
  } else {
    names = chosen.command->CommandNames();
    if (names.empty()) names = app.CommandNames();
  }
  return absl::StrCat("\n  \"", wrong, "\": ", SuggestName(wrong.substr(0, wrong.find('=')), names));
}

std::string ProblemText(const Command& app, const Chosen& chosen, const FlagProblem& problem) {
  using Kind = FlagProblem::Kind;
  const std::string name = problem.flag == nullptr    ? ""
                           : problem.flag->positional ? problem.flag->name
                                                      : absl::StrCat("--", problem.name);
  const auto bounds = problem.flag != nullptr ? problem.flag->bounds() : std::nullopt;
  switch (problem.kind) {
    case Kind::kUnknown:
    case Kind::kUnexpected:
      return absl::StrCat("The following argument was not expected: ", problem.argument,
                          Hint(app, chosen, problem.argument));
    case Kind::kNoValue:
      return absl::StrCat(name, ": 1 required ", problem.flag->placeholder, " missing");
    case Kind::kMissing:
      return absl::StrCat(name, " is required");
    case Kind::kBadValue:
    case Kind::kOutOfRange:
      break;
  }
  if (bounds.has_value())
    return absl::StrCat(name, ": Value ", problem.value, " not in range ", bounds->low, " to ", bounds->high);
  if (problem.kind == Kind::kOutOfRange) return absl::StrCat(name, ": ", problem.detail);
  return absl::StrCat("Could not convert: ", name, " = ", problem.value);
}

// Describes every problem in a sentence.
std::vector<std::string> ProblemTexts(const Command& app, const Chosen& chosen, std::vector<FlagProblem> problems) {
  const FlagSet& flags = *chosen.command->flags();
  for (FlagProblem& problem : flags.OutOfRange(/*given_only=*/true)) {
    const bool reported = std::any_of(problems.begin(), problems.end(), [&problem](const FlagProblem& other) {
      return other.flag == problem.flag;  // it was not set
    });
    if (!reported) problems.push_back(std::move(problem));
  }
  std::vector<std::string> texts;
  for (const FlagProblem& problem : problems) texts.push_back(ProblemText(app, chosen, problem));
  for (const auto& flag : flags.flags()) {
    if (flag->is_list || flag->is_bool || flag->times_given <= 1) continue;
    texts.push_back(absl::StrCat("--", flag->name, ": At Most 1 required but received ", flag->times_given));
  }
  return texts;
}

int ComplainOfArguments(Console& console, const std::vector<std::string>& problems, const std::string& topic) {
  for (const std::string& problem : problems) console.err << "switchyard: " << problem << "\n";
  console.err << "  see: switchyard help" << (topic.empty() ? "" : " ") << topic << std::endl;
  return kExitUsage;
}

// `help` and `help COMMAND` are `--help` and `COMMAND --help`.
std::vector<std::string> Normalized(std::vector<std::string> args) {
  if (args.empty()) return {"--help"};
  if (args[0] == "help") {
    args.erase(args.begin());
    args.emplace_back("--help");
  }
  return args;
}

}  // namespace

int RunCli(const std::vector<std::string>& given, Console& console) {
  const std::vector<std::string> args = Normalized(given);
  Command app("switchyard",
              "Talks with a Switchyard server: generates text, trains, shows its state, measures its speed.");
  bool help = false, version = false;
  app.flags()->BeginGroup("Flags");
  app.flags()->Add("version", &version, "print the version");
  AddCommands(&app);
  const Chosen chosen = Choose(&app, args);
  chosen.command->flags()->BeginGroup("");
  chosen.command->flags()->Add("help", &help, "");
  std::vector<FlagProblem> problems = chosen.command->flags()->Parse(chosen.rest);
  for (const FlagProblem& problem : problems) help = help || problem.argument == "-h";
  if (help || version) {
    console.out << (help ? chosen.command->Help(chosen.path) : absl::StrCat("switchyard ", console.version, "\n"))
                << std::flush;
    return kExitOk;
  }
  std::vector<std::string> texts;
  if (chosen.command->HasRun()) {
    texts = ProblemTexts(app, chosen, std::move(problems));
  } else {
    const std::string& wrong = chosen.rest.empty() ? args[0] : chosen.rest[0];
    texts = {absl::StrCat("A subcommand is required", Hint(app, chosen, wrong))};
  }
  if (texts.empty()) return chosen.command->Run(console);
  return ComplainOfArguments(console, texts, chosen.command == &app ? "" : args[0]);
}

}  // namespace switchyard::cli
