#include "clients/cli/app.h"

#include <algorithm>
#include <iterator>
#include <ostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "clients/cli/command.h"
#include "scheduler/base/text/nearest_name.h"
#include "scheduler/base/text/quote.h"

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
  AddQuantizeCommand(app);
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

// What other programs call otherwise.
void AdviseOnNames(FlagSet* flags) {
  constexpr char kServer[] = "the server is named by --server=HOST:PORT";
  constexpr char kPrompt[] = "the prompt is an argument without a name, or --text";
  flags->Advise({{"host", kServer},
                 {"port", kServer},
                 {"url", kServer},
                 {"base_url", kServer},
                 {"address", kServer},
                 {"prompt", kPrompt},
                 {"-p", kPrompt},
                 {"prompt_file", "give --text=\"$(cat FILE)\", or --input=FILE with JSON lines"},
                 {"max_new_tokens", "here it is --max_tokens"},
                 {"-n", "here it is --max_tokens, or --n for several choices"},
                 {"api_key",
                  "others may see command lines: give --api_key_file=FILE, or SWITCHYARD_API_KEY in the "
                  "environment"}});
}

// The nearest name for a wrong one of a command; "commands are: ..." if none is near.
std::string CommandHint(const Command& app, const Chosen& chosen, const std::string& wrong) {
  std::vector<std::string> names = chosen.command->CommandNames();
  if (names.empty()) names = app.CommandNames();
  const std::string nearest = NearestName(wrong, names);
  return nearest.empty() ? absl::StrCat("; known are: ", absl::StrJoin(names, ", "))
                         : absl::StrCat("; did you mean \"", nearest, "\"?");
}

// Arguments that stand without a name, where the command has no place for them, or none any more.
std::string UnexpectedText(const Command& app, const Chosen& chosen, const std::vector<std::string>& arguments) {
  std::vector<std::string> quoted;
  for (const std::string& argument : arguments) quoted.push_back(Quote(argument));
  const std::string what =
      absl::StrCat("unexpected argument", quoted.size() > 1 ? "s " : " ", absl::StrJoin(quoted, ", "));
  for (const auto& flag : chosen.command->flags()->flags()) {
    if (!flag->positional || flag->times_given == 0) continue;
    const std::string twice = absl::StrCat(what, ": the ", flag->name, " is already ", Quote(flag->given));
    if (flag->name != "prompt") return twice;
    return absl::StrCat(twice, "; a text with spaces stands in quotes: ",
                        Quote(absl::StrCat(flag->given, " ", absl::StrJoin(arguments, " "))));
  }
  if (!chosen.command->CommandNames().empty())
    return absl::StrCat("unknown command ", Quote(arguments[0]), CommandHint(app, chosen, arguments[0]));
  return absl::StrCat(what, "; flags look like --name=value");
}

std::string KindOf(const Flag& flag) {
  if (flag.is_bool) return "true or false";
  if (flag.placeholder == "NUMBER" || flag.placeholder == "SECONDS") return "a number";
  return flag.placeholder == "TIME" ? "a time such as 90s" : flag.placeholder;
}

std::string ProblemText(const Chosen& chosen, const FlagProblem& problem) {
  using Kind = FlagProblem::Kind;
  const std::string name = problem.flag == nullptr    ? ""
                           : problem.flag->positional ? problem.flag->name
                                                      : absl::StrCat("--", problem.name);
  switch (problem.kind) {
    case Kind::kUnknown: {
      std::vector<std::string> names;
      for (const std::string& known : chosen.command->flags()->Names()) names.push_back(absl::StrCat("--", known));
      const std::string wrong = absl::StrCat("--", problem.name), nearest = NearestName(wrong, names);
      return absl::StrCat(
          "unknown flag ", wrong, !problem.advice.empty() ? "; " : "", problem.advice,
          problem.advice.empty() && !nearest.empty() ? absl::StrCat("; did you mean \"", nearest, "\"?") : "");
    }
    case Kind::kUnexpected:  // a flag with one dash
      return absl::StrCat("unknown flag ", problem.argument, "; ",
                          problem.advice.empty() ? "flags look like --name=value" : problem.advice);
    case Kind::kNoValue:
      return absl::StrCat(name, ": needs a value: ", name, "=", problem.flag->placeholder);
    case Kind::kMissing:
      return absl::StrCat(name, " is required");
    case Kind::kBadValue:
    case Kind::kOutOfRange:
      break;
  }
  const std::string what = absl::StrCat(name, "=", problem.value, ": must be ");
  if (const auto bounds = problem.flag->bounds(); bounds.has_value())
    return absl::StrCat(what, KindOf(*problem.flag), " from ", bounds->low, " to ", bounds->high);
  if (problem.kind == Kind::kOutOfRange) return absl::StrCat(name, ": ", problem.detail);
  return absl::StrCat(what, KindOf(*problem.flag));
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
  std::vector<std::string> texts, unexpected;
  for (const FlagProblem& problem : problems) {
    const bool is_plain = problem.kind == FlagProblem::Kind::kUnexpected && !absl::StartsWith(problem.argument, "-");
    is_plain ? unexpected.push_back(problem.argument) : texts.push_back(ProblemText(chosen, problem));
  }
  if (!unexpected.empty()) texts.insert(texts.begin(), UnexpectedText(app, chosen, unexpected));
  for (const auto& flag : flags.flags()) {
    if (flag->is_list || flag->is_bool || flag->times_given <= 1) continue;
    texts.push_back(absl::StrCat("--", flag->name, ": is given ", flag->times_given, " times; give it once"));
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

int RunArguments(const std::vector<std::string>& given, Console& console) {
  const std::vector<std::string> args = Normalized(given);
  Command app("switchyard",
              "Talks with a Switchyard server: generates text, trains, shows its state, measures its speed.");
  bool help = false, version = false;
  app.flags()->BeginGroup("Flags");
  app.flags()->Add("version", &version, "print the version");
  AddCommands(&app);
  const Chosen chosen = Choose(&app, args);
  if (!chosen.command->HasRun() && !chosen.rest.empty() && chosen.rest[0] == "help") {  // `train help submit`
    std::vector<std::string> again = {"help"};
    std::remove_copy(args.begin(), args.end(), std::back_inserter(again), "help");
    return RunArguments(again, console);
  }
  chosen.command->flags()->BeginGroup("");
  chosen.command->flags()->Add("help", &help, "");
  AdviseOnNames(chosen.command->flags());
  std::vector<FlagProblem> problems = chosen.command->flags()->Parse(chosen.rest);
  for (const FlagProblem& problem : problems) help = help || problem.argument == "-h";
  const bool is_unknown = !chosen.command->HasRun() && !chosen.rest.empty() && !absl::StartsWith(chosen.rest[0], "-");
  if ((help && !is_unknown) || version) {
    console.out << (help ? chosen.command->Help(chosen.path) : absl::StrCat("switchyard ", console.version, "\n"))
                << std::flush;
    return kExitOk;
  }
  std::vector<std::string> texts;
  if (chosen.command->HasRun()) {
    texts = ProblemTexts(app, chosen, std::move(problems));
  } else {
    texts = {is_unknown ? UnexpectedText(app, chosen, {chosen.rest[0]})
                        : absl::StrCat("a command is missing; known are: ",
                                       absl::StrJoin(chosen.command->CommandNames(), ", "))};
  }
  if (texts.empty()) return chosen.command->Run(console);
  const std::string whole = absl::StrCat(chosen.path, " ", chosen.command->name());
  return ComplainOfArguments(console, texts,
                             chosen.command == &app ? "" : std::string(absl::StripPrefix(whole, "switchyard ")));
}

}  // namespace

int RunCli(const std::vector<std::string>& args, Console& console) {
  const int code = RunArguments(args, console);
  if (console.out.flush()) return code;
  console.err << "switchyard: standard output: cannot be written, what it has is not complete" << std::endl;
  return code == kExitOk ? kExitFailed : code;
}

}  // namespace switchyard::cli
