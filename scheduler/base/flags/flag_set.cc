#include "scheduler/base/flags/flag_set.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "scheduler/base/text/nearest_name.h"

namespace switchyard {
namespace {

// "-5" is a number and "-" a file; "--port" and "-p" are flags.
bool LooksLikeFlag(absl::string_view arg) {
  return arg.size() > 1 && arg[0] == '-' && !(arg[1] >= '0' && arg[1] <= '9') && arg[1] != '.';
}

std::string Underscored(absl::string_view name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

}  // namespace

std::string FlagProblem::ToString() const {
  switch (kind) {
    case Kind::kUnknown:
      return absl::StrCat(where, "unknown flag --", name,
                          !advice.empty()   ? absl::StrCat("; ", advice)
                          : !detail.empty() ? absl::StrCat("; did you mean --", detail, "?")
                                            : "");
    case Kind::kUnexpected:
      return absl::StrCat(where, "unexpected argument ", argument, "; ",
                          advice.empty() ? "flags look like --name=value" : advice);
    case Kind::kNoValue:
      return absl::StrCat(where, "--", name, ": needs a value");
    case Kind::kBadValue:
      return absl::StrCat(where, "Illegal value '", value, "' specified for flag '", name, "'",
                          detail.empty() ? "" : "; ", detail);
    case Kind::kOutOfRange:
      return absl::StrCat(where, "--", name, "=", value, ": ", detail);
    case Kind::kMissing:
      return absl::StrCat(where, "--", name, ": missing");
  }
  return "";
}

void FlagSet::BeginGroup(absl::string_view title) {
  group_ = std::string(title);
  if (std::find(groups_.begin(), groups_.end(), group_) == groups_.end()) groups_.push_back(group_);
}

void FlagSet::Own(std::unique_ptr<Flag> flag, absl::string_view help, bool is_bool, bool is_list) {
  flag->help = std::string(help);
  flag->group = group_;
  flag->is_bool = is_bool;
  flag->is_list = is_list;
  flags_.push_back(std::move(flag));
}

Flag& FlagSet::AddFunction(absl::string_view name, std::string default_text, FunctionFlag::TakeFn take,
                           absl::string_view help, bool is_bool) {
  Own(std::make_unique<FunctionFlag>(name, std::move(default_text), std::move(take)), help, is_bool, false);
  flags_.back()->explains = true;
  return *flags_.back();
}

std::vector<FlagProblem> FlagSet::Parse(absl::Span<const std::string> args) {
  std::vector<FlagProblem> problems;
  bool flags_end = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!flags_end && args[i] == "--") {
      flags_end = true;
    } else if (!flags_end && LooksLikeFlag(args[i])) {
      TakeFlag(args, &i, &problems);
    } else {
      TakePositional(args[i], &problems);
    }
  }
  for (const auto& flag : flags_) {
    if (!flag->required || flag->times_given > 0) continue;
    problems.push_back({.kind = FlagProblem::Kind::kMissing, .flag = flag.get(), .name = flag->name});
  }
  return problems;
}

void FlagSet::TakeFlag(absl::Span<const std::string> args, size_t* i, std::vector<FlagProblem>* problems) {
  absl::string_view text = args[*i];
  FlagProblem given = {.kind = FlagProblem::Kind::kUnknown, .argument = args[*i]};
  if (!absl::ConsumePrefix(&text, "--")) {
    given.kind = FlagProblem::Kind::kUnexpected;
    given.advice = AdviceOn(given.argument);
    return problems->push_back(std::move(given));
  }
  const size_t equals = text.find('=');
  const bool has_value = equals != absl::string_view::npos;
  given.name = std::string(text.substr(0, equals));
  Flag* flag = Find(given.name);
  given.value = has_value ? std::string(text.substr(equals + 1)) : "true";
  if (flag == nullptr && !has_value && absl::StartsWith(given.name, "no")) {
    absl::string_view positive = absl::string_view(given.name).substr(2);
    absl::ConsumePrefix(&positive, "-");
    flag = Find(positive);
    if (flag != nullptr && !flag->is_bool) flag = nullptr;
    given.value = "false";
  }
  if (flag == nullptr || flag->positional) {
    given.detail = NearestName(Underscored(given.name), Names());
    given.advice = AdviceOn(given.name);
    return problems->push_back(std::move(given));
  }
  if (!has_value && !flag->is_bool) {
    if (*i + 1 >= args.size()) {
      given.kind = FlagProblem::Kind::kNoValue;
      given.flag = flag;
      return problems->push_back(std::move(given));
    }
    given.value = args[++*i];
  }
  Set(flag, std::move(given), problems);
}

void FlagSet::TakePositional(const std::string& arg, std::vector<FlagProblem>* problems) {
  for (const auto& flag : flags_) {
    if (!flag->positional || (flag->times_given > 0 && !flag->is_list)) continue;
    return Set(flag.get(), {.kind = {}, .name = flag->name, .argument = arg, .value = arg}, problems);
  }
  problems->push_back({.kind = FlagProblem::Kind::kUnexpected, .argument = arg, .advice = AdviceOn("")});
}

std::vector<FlagProblem> FlagSet::Fill(absl::Span<const FlagSetting> settings) {
  std::vector<FlagProblem> problems;
  std::set<const Flag*> filling;  // several values of a list are one source's
  for (const FlagSetting& setting : settings) {
    FlagProblem given = {.kind = FlagProblem::Kind::kUnknown,
                         .name = setting.name,
                         .argument = setting.value,
                         .value = setting.value,
                         .where = absl::StrCat(setting.where, ": ")};
    Flag* flag = Find(setting.name);
    if (flag == nullptr || flag->positional) {
      given.detail = NearestName(Underscored(setting.name), Names());
      given.advice = AdviceOn(setting.name);
      problems.push_back(std::move(given));
    } else if (flag->times_given == 0 || filling.contains(flag)) {
      filling.insert(flag);
      Set(flag, std::move(given), &problems);
    }
  }
  return problems;
}

std::string FlagSet::AdviceOn(const std::string& name) const {
  const auto found = advice_.find(absl::StartsWith(name, "-") ? name : Underscored(name));
  return found == advice_.end() ? "" : found->second;
}

void FlagSet::Set(Flag* flag, FlagProblem given, std::vector<FlagProblem>* problems) {
  ++flag->times_given;
  flag->given = given.value;
  if (flag->Set(given.value, &given.detail)) return;
  given.kind = flag->explains ? FlagProblem::Kind::kOutOfRange : FlagProblem::Kind::kBadValue;
  given.flag = flag;
  problems->push_back(std::move(given));
}

std::vector<FlagProblem> FlagSet::OutOfRange(bool given_only) const {
  std::vector<FlagProblem> problems;
  for (const auto& flag : flags_) {
    if (given_only && flag->times_given == 0) continue;
    if (flag->InBounds()) continue;
    const Flag::Bounds bounds = *flag->bounds();
    problems.push_back({.kind = FlagProblem::Kind::kOutOfRange,
                        .flag = flag.get(),
                        .name = flag->name,
                        .value = flag->text(),
                        .detail = absl::StrCat("must be within [", bounds.low, ", ", bounds.high, "]")});
  }
  return problems;
}

Flag* FlagSet::Find(absl::string_view name) const {
  const std::string underscored = Underscored(name);
  for (const auto& flag : flags_) {
    if (flag->HasName(underscored)) return flag.get();
  }
  return nullptr;
}

std::vector<const Flag*> FlagSet::Marked(uint32_t marks) const {
  std::vector<const Flag*> found;
  for (const auto& flag : flags_) {
    if ((flag->marks & marks) != 0) found.push_back(flag.get());
  }
  return found;
}

std::vector<std::string> FlagSet::ArgumentsOf(uint32_t marks) const {
  std::vector<std::string> args;
  for (const Flag* flag : Marked(marks)) args.push_back(absl::StrCat("--", flag->name, "=", flag->text()));
  return args;
}

std::vector<std::string> FlagSet::Names() const {
  std::vector<std::string> names;
  for (const auto& flag : flags_) {
    if (!flag->positional) names.push_back(flag->name);
  }
  return names;
}

}  // namespace switchyard
