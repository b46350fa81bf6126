// Makes scripts that complete a program's commands and flags on the command line of bash or zsh, from its tables of
// flags.
//
// Words of a value are completed too: files and folders, and the names of `--combine=exact|added`.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/base/flags/flag_set.h"

namespace switchyard {

// A command of the program, or the program itself.
struct CompletedCommand {
  std::string path;                   // "train submit"; "": the program itself
  std::vector<std::string> commands;  // names of those beneath it
  const FlagSet* flags;               // not null, borrowed
};

// `shell`: bash or zsh; "" for any other.  `program`: a name such as "switchyard-server".
std::string CompletionScript(absl::string_view shell, absl::string_view program,
                             const std::vector<CompletedCommand>& commands);

}  // namespace switchyard
