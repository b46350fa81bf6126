#include "scheduler/base/flags/completion.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace switchyard {
namespace {

// FUNCTION and PROGRAM are names, CASES lines of a case over $path: words that may follow, and commands among them.
// bash takes "=" for a word of its own.
constexpr char kBash[] = R"(# Completion of PROGRAM for bash.
FUNCTION() {
  local current=${COMP_WORDS[COMP_CWORD]} flag= path= commands= words= values= i=0
  while :; do
    case "$path" in
CASES    esac
    ((++i < COMP_CWORD)) && [[ " $commands " == *" ${COMP_WORDS[i]} "* ]] || break
    path+="${path:+ }${COMP_WORDS[i]}"
  done
  if [[ $current == = ]]; then
    flag=${COMP_WORDS[COMP_CWORD - 1]} current=
  elif ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then
    flag=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
  if [[ -n $flag ]]; then
    for i in $values; do [[ $i == "$flag="* ]] && COMPREPLY+=($(compgen -W "${i#*=}" -- "$current")); done
    [[ ${#COMPREPLY[@]} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames 2>/dev/null
  elif [[ -n $words && ($current == -* || -n $commands) ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
  return 0
}
complete -F FUNCTION PROGRAM
)";

constexpr char kZsh[] = R"(#compdef PROGRAM
# Completion of PROGRAM for zsh.
FUNCTION() {
  local route= commands= words_here= values= one i=1
  while :; do
    case "$route" in
CASES    esac
    ((++i < CURRENT)) && [[ " $commands " == *" ${words[i]} "* ]] || break
    route+="${route:+ }${words[i]}"
  done
  if [[ ${words[CURRENT]} == --*=* ]]; then
    local flag=${words[CURRENT]%%=*} found=1
    compset -P '*='
    for one in ${=values}; do [[ $one == "$flag="* ]] && compadd -- "${one#*=}" && found=0; done
    ((found == 0)) || _files
  elif [[ -n $words_here && (${words[CURRENT]} == -* || -n $commands) ]]; then
    for one in ${=words_here}; do
      if [[ $one == *= ]]; then compadd -S '' -- "$one"; else compadd -- "$one"; fi
    done
  else
    _files
  fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then FUNCTION "$@"; else compdef FUNCTION PROGRAM; fi
)";

// "    "train submit") commands= words="--steps= …" values="--combine=exact --combine=added" ;;"
std::string CaseOf(const CompletedCommand& command, absl::string_view words_variable) {
  std::vector<std::string> words = command.commands, values;
  for (const auto& flag : command.flags->flags()) {
    if (flag->positional || flag->group.empty()) continue;
    words.push_back(absl::StrCat("--", flag->name, flag->is_bool && flag->default_text == "false" ? "" : "="));
    if (flag->is_bool)
      values.insert(values.end(), {absl::StrCat("--", flag->name, "=true"), absl::StrCat("--", flag->name, "=false")});
    if (!absl::StrContains(flag->placeholder, '|')) continue;
    // Names stand for themselves; what is in capitals for anything.
    for (absl::string_view name : absl::StrSplit(flag->placeholder, '|')) {
      if (absl::c_all_of(name, absl::ascii_islower)) values.push_back(absl::StrCat("--", flag->name, "=", name));
    }
  }
  words.push_back("--help");
  return absl::StrCat("      \"", command.path, "\") commands=\"", absl::StrJoin(command.commands, " "), "\" ",
                      words_variable, "=\"", absl::StrJoin(words, " "), "\" values=\"", absl::StrJoin(values, " "),
                      "\" ;;\n");
}

}  // namespace

std::string CompletionScript(absl::string_view shell, absl::string_view program,
                             const std::vector<CompletedCommand>& commands) {
  if (shell != "bash" && shell != "zsh") return "";
  const bool bash = shell == "bash";
  std::string cases;
  for (const CompletedCommand& command : commands) cases += CaseOf(command, bash ? "words" : "words_here");
  const std::string function = absl::StrCat("_", absl::StrReplaceAll(program, {{"-", "_"}}));
  return absl::StrReplaceAll(bash ? kBash : kZsh, {{"FUNCTION", function}, {"PROGRAM", program}, {"CASES", cases}});
}

}  // namespace switchyard
