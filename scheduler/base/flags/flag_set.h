// The flags of a program, or of one of its commands: a table that is written once, beside what its rows set.
//
//   FlagSet flags;
//   flags.BeginGroup("Model");
//   flags.Add("model=DIR", &config->model, "directory of the checkpoint (required)");
//   flags.Add("port", &config->port, "0 = any free one").Range(0, 65535);
//   std::vector<FlagProblem> problems = flags.Parse(arguments);
//
// `--name=value`, `--name value`, `--bool` and `--nobool` are taken; what stands behind `--` is positional.  Names have
// underscores or dashes, `--no-bool` among them.  Fill sets what other sources have (flag_sources.h).  Variables have
// to outlive the table.  Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/base/flags/flag.h"

namespace switchyard {

// Something wrong with a command line, or another source of values.
struct FlagProblem {
  enum class Kind {
    kUnknown,     // no flag has that name; `detail` is the nearest one, if any is near, or else `advice` what to do
    kUnexpected,  // an argument that is no flag, where none is wanted; `advice` as above
    kNoValue,     // the last argument is a flag that wants one
    kBadValue,    // not of its type; `detail` may say why
    kOutOfRange,  // or not one of those that there are; `detail` is what it must be
    kMissing,     // a required one
  };
  Kind kind;
  const Flag* flag = nullptr;  // null: there is none
  std::string name = {};       // of the flag, as it was given
  std::string argument = {};   // as it was given, with its value
  std::string value = {};
  std::string detail = {};
  std::string advice = {};
  std::string where = {};  // "FILE:LINE: "; empty: the command line

  // "unknown flag --modle; did you mean --model?"
  std::string ToString() const;
};

// A value that a file or the environment has for a flag.
struct FlagSetting {
  std::string where;  // "server.yaml:3" or "SWITCHYARD_PORT", for errors
  std::string name;
  std::string value;
};

class FlagSet {
 public:
  // Flags that are added from now on stand under this title; titles keep the order in which they first began.
  void BeginGroup(absl::string_view title);
  // Moves a flag under that title.  REQUIRES: there is such a flag.
  void Regroup(absl::string_view name) { Find(name)->group = group_; }

  template <class T>
  VariableFlag<T>& Add(absl::string_view name, T* variable, absl::string_view help) {
    auto flag = std::make_unique<VariableFlag<T>>(name, variable);
    VariableFlag<T>& added = *flag;
    Own(std::move(flag), help, std::is_same_v<T, bool>, kIsList<T>);
    return added;
  }
  // An argument without a name; a list takes all that are left.
  template <class T>
  VariableFlag<T>& AddPositional(absl::string_view name, T* variable, absl::string_view help) {
    VariableFlag<T>& added = Add(name, variable, help);
    added.positional = true;
    return added;
  }
  // `take` gets every text that is given ("true" for --name alone, if is_bool), and returns what it must be, or "" if
  // it is.
  Flag& AddFunction(absl::string_view name, std::string default_text, FunctionFlag::TakeFn take, absl::string_view help,
                    bool is_bool = false);

  // What to say of a name that another program has for what this one calls otherwise: "is --local_workers here".
  // Names: with underscores, "-m" for a letter, "" for an argument without a name.
  void Advise(std::map<std::string, std::string> advice) { advice_ = std::move(advice); }

  // Sets the variables; returns everything that is wrong, in the order of the arguments, but for values out of range.
  std::vector<FlagProblem> Parse(absl::Span<const std::string> args);
  // Sets those flags that neither Parse nor an earlier Fill has set; returns everything that is wrong.
  std::vector<FlagProblem> Fill(absl::Span<const FlagSetting> settings);
  // Values outside of their flag's range, of all flags or of those that were given.
  std::vector<FlagProblem> OutOfRange(bool given_only) const;

  // By name or alias, with underscores or dashes; null if there is none.
  Flag* Find(absl::string_view name) const;
  // Flags with one of the bits.
  std::vector<const Flag*> Marked(uint32_t marks) const;
  // "--name=value" of those, for another program that has the same flags.
  std::vector<std::string> ArgumentsOf(uint32_t marks) const;
  // Names of the flags that may be suggested to a user.
  std::vector<std::string> Names() const;
  const std::vector<std::unique_ptr<Flag>>& flags() const { return flags_; }
  const std::vector<std::string>& groups() const { return groups_; }

 private:
  std::string AdviceOn(const std::string& name) const;
  void Own(std::unique_ptr<Flag> flag, absl::string_view help, bool is_bool, bool is_list);
  void TakeFlag(absl::Span<const std::string> args, size_t* i, std::vector<FlagProblem>* problems);
  void TakePositional(const std::string& arg, std::vector<FlagProblem>* problems);
  static void Set(Flag* flag, FlagProblem given, std::vector<FlagProblem>* problems);

  std::string group_;
  std::vector<std::string> groups_;
  std::vector<std::unique_ptr<Flag>> flags_;
  std::map<std::string, std::string> advice_;
};

}  // namespace switchyard
