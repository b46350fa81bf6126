// switchyard completion
#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "scheduler/base/flags/completion.h"

namespace switchyard::cli {
namespace {

void Collect(const Command& command, const std::string& path, std::vector<CompletedCommand>* all) {
  all->push_back({path, command.CommandNames(), &command.flags()});
  for (const auto& one : command.commands())
    Collect(*one, absl::StrCat(path, path.empty() ? "" : " ", one->name()), all);
}

}  // namespace

void AddCompletionCommand(Command* app) {
  Command* command = app->AddCommand("completion", "print a script that completes commands and flags in bash or zsh");
  auto shell = std::make_shared<std::string>();
  command->flags()->AddPositional("shell", shell.get(), "bash or zsh").Required();
  command->SetFooter(
      "Examples:\n"
      "  source <(switchyard completion bash)\n"
      "  switchyard completion zsh >~/.zfunc/_switchyard     # in a folder of $fpath\n");
  command->SetRun([app, shell](Console& console) -> absl::StatusOr<int> {
    std::vector<CompletedCommand> commands;
    Collect(*app, "", &commands);
    const std::string script = CompletionScript(*shell, "switchyard", commands);
    if (script.empty()) return BadInput(absl::StrCat("shell: must be bash or zsh, not ", *shell));
    console.out << script << std::flush;
    return kExitOk;
  });
}

}  // namespace switchyard::cli
