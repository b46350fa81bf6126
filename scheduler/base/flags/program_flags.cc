#include "scheduler/base/flags/program_flags.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/env.h"
#include "scheduler/base/flags/completion.h"
#include "scheduler/base/flags/flag_sources.h"
#include "scheduler/base/flags/help_text.h"

namespace switchyard {
namespace {

constexpr int kBadCommandLine = 2;

constexpr char kSourcesHelp[] =
    "Every flag may also be an environment variable (SWITCHYARD_MAX_QUEUE=100) or\n"
    "a line of the file that --config names (max_queue: 100). The command line\n"
    "counts most, then the environment, then the file. Names may have dashes for\n"
    "underscores.\n\n";

[[noreturn]] void PrintAndExit(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::exit(0);
}

void PrintLine(absl::string_view program, absl::string_view text) {
  std::fputs(absl::StrCat(program, ": ", text, "\n").c_str(), stderr);
}

// Sets from environment and file what the command line has not set.
std::vector<std::string> FillFromSources(const ProgramHelp& help, const std::string& config_file, FlagSet* flags) {
  std::vector<std::string> problems;
  const auto fill = [&](absl::Span<const FlagSetting> settings) {
    for (const FlagProblem& problem : flags->Fill(settings)) problems.push_back(problem.ToString());
  };
  fill(EnvironmentSettings(*flags, environ));
  for (const std::string& line : MisspelledVariables(*flags, environ)) PrintLine(help.name, line);
  if (config_file.empty()) return problems;
  const absl::StatusOr<std::vector<FlagSetting>> settings = ReadConfigFile(config_file);
  if (settings.ok()) {
    fill(*settings);
  } else {
    problems.emplace_back(settings.status().message());
  }
  return problems;
}

}  // namespace

void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help, FlagSet* flags) {
  static std::string config_file;  // the table, which sets it, may outlive this call
  flags->BeginGroup("Other sources of flags");
  flags->Add("config=FILE", &config_file,
             "file with flags (YAML, `name: value`), for those that are not given otherwise");
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      PrintAndExit(absl::StrCat(help.name, " ", help.version, ": ", help.summary, "\n\n",
                                FlagsHelp(*flags, HelpColumns()),
                                "\n--help prints this page, --version which version this is, --completion=bash\n"
                                "or zsh a script for that shell.\n\n",
                                kSourcesHelp, EnvHelp()));
    }
    if (absl::string_view shell = arg; absl::ConsumePrefix(&shell, "--completion=")) {
      const std::string script = CompletionScript(shell, help.name, {{"", {}, flags}});
      if (!script.empty()) PrintAndExit(script);
    }
    if (arg == "--version") PrintAndExit(absl::StrCat(help.name, " ", help.version, "\n"));
  }
  std::vector<std::string> problems;
  for (const FlagProblem& problem : flags->Parse(args)) problems.push_back(problem.ToString());
  const std::vector<const Flag*> alone = flags->Marked(help.alone_with);
  if (std::none_of(alone.begin(), alone.end(), [](const Flag* flag) { return flag->times_given > 0; })) {
    for (std::string& problem : FillFromSources(help, config_file, flags)) problems.push_back(std::move(problem));
  }
  if (problems.empty()) return;
  for (const std::string& problem : problems) PrintLine(help.name, problem);
  std::fputs(absl::StrCat("see ", help.name, " --help\n").c_str(), stderr);
  std::exit(kBadCommandLine);
}

}  // namespace switchyard
