#include "clients/cli/app.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/field.h"

namespace switchyard {
namespace {

constexpr char kVersion[] = "switchyard 0.1.0";

void AddCommands(CLI::App* app, RunCommand* run) {
  app->name("switchyard");
  app->set_version_flag("--version", kVersion);
  app->require_subcommand(1);
  app->get_formatter()->column_width(34);
  AddGenerateCommand(app, run);
  AddChatCommand(app, run);
  AddTokenizeCommand(app, run);
  AddDetokenizeCommand(app, run);
  AddStatusCommand(app, run);
  AddExpertsCommand(app, run);
  AddBenchCommand(app, run);
  AddTraceCommand(app, run);
  AddProfileCommand(app, run);
  AddTrainCommand(app, run);
  AddDataCommand(app, run);
  app->footer(
      "`switchyard help COMMAND` explains a command's flags.\n"
      "Exit codes: 0 done, 1 a request failed, 2 wrong flags or input.\n"
      "The server is started by: switchyard-server --model=DIR --local_workers=2");
}

// The command that was chosen, or the program itself; *path: what stands before its name on the command line.
const CLI::App* Chosen(const CLI::App& app, std::string* path) {
  const CLI::App* in = &app;
  path->clear();
  while (!in->get_subcommands().empty()) {
    absl::StrAppend(path, path->empty() ? "" : " ", in->get_name());
    in = in->get_subcommands()[0];
  }
  return in;
}

// A wrong flag or command with the nearest right one.
std::string Hint(const CLI::App& app, const std::string& wrong) {
  std::string path;
  const CLI::App* in = Chosen(app, &path);
  std::vector<std::string> names;
  if (!absl::StartsWith(wrong, "-")) {
    if (in->get_subcommands({}).empty()) in = &app;
    for (const CLI::App* command : in->get_subcommands({})) names.push_back(command->get_name());
  } else {
    for (const CLI::Option* option : in->get_options()) names.push_back(option->get_name());
  }
  return SuggestName(wrong.substr(0, wrong.find('=')), names);
}

int ComplainOfArguments(Console& console, const CLI::App& app, const std::vector<std::string>& args,
                        const CLI::ParseError& error) {
  console.err << "switchyard: " << error.what();
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (unknown || (no_command && !args.empty())) {
    const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
    const std::string wrong = rest.empty() ? args[0] : rest[0];
    console.err << "\n  \"" << wrong << "\": " << Hint(app, wrong);
  }
  console.err << "\n  see: switchyard help"
              << (app.get_subcommands().empty() ? "" : " " + app.get_subcommands()[0]->get_name()) << std::endl;
  return kExitUsage;
}

// `help` and `help COMMAND` are `--help` and `COMMAND --help`; `--flag=` has an empty value, where the parser would
// take the next argument.
std::vector<std::string> Normalized(std::vector<std::string> args) {
  if (args.empty()) return {"--help"};
  if (args[0] == "help") {
    args.erase(args.begin());
    args.push_back("--help");
  }
  std::vector<std::string> out;
  for (const std::string& arg : args) {
    const bool empty_value = absl::StartsWith(arg, "--") && arg.find('=') == arg.size() - 1;
    out.push_back(empty_value ? arg.substr(0, arg.size() - 1) : arg);
    if (empty_value) out.emplace_back();
  }
  return out;
}

}  // namespace

int RunCli(const std::vector<std::string>& given, Console& console) {
  const std::vector<std::string> args = Normalized(given);
  CLI::App app("talks with a Switchyard server: generates text, trains, shows its state, measures its speed");
  RunCommand run;
  AddCommands(&app, &run);
  try {  // the parser's way of saying no, and of saying help
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(reversed);
  } catch (const CLI::CallForVersion&) {
    console.out << kVersion << std::endl;
    return kExitOk;
  } catch (const CLI::Success&) {  // --help
    std::string path;
    const CLI::App* chosen = Chosen(app, &path);
    console.out << chosen->help(path) << std::flush;
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return ComplainOfArguments(console, app, args, error);
  }
  return run(console);
}

}  // namespace switchyard
