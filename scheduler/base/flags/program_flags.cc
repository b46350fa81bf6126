#include "scheduler/base/flags/program_flags.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/env.h"
#include "scheduler/base/flags/help_text.h"

namespace switchyard {
namespace {

constexpr int kBadCommandLine = 2;

[[noreturn]] void PrintAndExit(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::exit(0);
}

}  // namespace

void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help, FlagSet* flags) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      PrintAndExit(absl::StrCat(help.name, " ", help.version, ": ", help.summary, "\n\n",
                                FlagsHelp(*flags, HelpColumns()),
                                "\n--help prints this page, --version which version this is.\n\n", EnvHelp()));
    }
    if (arg == "--version") PrintAndExit(absl::StrCat(help.name, " ", help.version, "\n"));
  }
  const std::vector<FlagProblem> problems = flags->Parse(args);
  if (problems.empty()) return;
  std::string text;
  for (const FlagProblem& problem : problems) absl::StrAppend(&text, help.name, ": ", problem.ToString(), "\n");
  absl::StrAppend(&text, "see ", help.name, " --help\n");
  std::fputs(text.c_str(), stderr);
  std::exit(kBadCommandLine);
}

}  // namespace switchyard
