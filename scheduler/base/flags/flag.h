// One row of a program's table of flags: its name, the variable that it sets, and what --help says of it.
//
// A row is made by FlagSet::Add, which also says its help and its group; what else is to be said of it is chained:
//
//   flags.Add("port", &config->port, "gRPC port; 0 = any free one").Range(0, 65535);
//   flags.Add("device=NAME", &config->device, "...").Alias("dev").Mark(kForWorkers);
//
// What stands behind a name's "=" stands for the value in --help.
// The variable's value when the row is made is the flag's default.  Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/flags/flag_value.h"

namespace switchyard {

// What a flag's variable is, as far as the command line shows it.
template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <class T>
constexpr const char* PlaceholderOf() {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::optional<int32_t>>) return "NUMBER";
  if constexpr (std::is_same_v<T, absl::Duration>) return "TIME";
  return "TEXT";
}

class Flag {
 public:
  struct Bounds {
    std::string low, high;  // as ValueText
  };

  // `placeholder` is for a name without its own.
  Flag(absl::string_view name, absl::string_view placeholder, std::string default_text);
  virtual ~Flag() = default;
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  // A further name that is taken, but that --help and suggestions keep to themselves: the name before a renaming.
  Flag& Alias(absl::string_view name);
  // Bits by which the table's owner finds rows again (FlagSet::Marked).
  Flag& Mark(uint32_t marks);
  // --help does not say the default: `help` does, or there is none.
  Flag& NoDefault();
  // It has to be given.
  Flag& Required();

  // Sets the variable.  False: the text is no value of it; *error may say why.
  virtual bool Set(absl::string_view text, std::string* error) = 0;
  // The variable as text; "" where it has none.
  virtual std::string text() const = 0;
  // The limits, if it has any and the variable is outside of them.
  virtual std::optional<Bounds> Broken() const { return std::nullopt; }
  // The limits, if it has any.
  virtual std::optional<Bounds> bounds() const { return std::nullopt; }

  bool HasName(absl::string_view name) const;
  bool is_default() const { return text() == default_text_; }
  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::string& group() const { return group_; }
  const std::string& placeholder() const { return placeholder_; }
  const std::string& default_text() const { return default_text_; }
  bool shows_default() const { return shows_default_; }
  uint32_t marks() const { return marks_; }
  bool required() const { return required_; }
  bool positional() const { return positional_; }  // it is given without its name
  bool is_bool() const { return is_bool_; }        // --name alone sets it; --noname takes it back
  bool is_list() const { return is_list_; }        // every value that is given counts, not the last alone
  int times_given() const { return times_given_; }

 private:
  friend class FlagSet;
  const std::string name_, placeholder_;
  const std::string default_text_;
  std::string help_, group_;
  std::vector<std::string> aliases_;
  uint32_t marks_ = 0;
  bool shows_default_ = true, required_ = false, positional_ = false, is_bool_ = false, is_list_ = false;
  bool explains_ = false;  // what Set says is what a value must be
  int times_given_ = 0;
};

template <class T>
class VariableFlag final : public Flag {
 public:
  VariableFlag(absl::string_view name, T* variable)
      : Flag(name, PlaceholderOf<T>(), ValueText(*variable)), variable_(variable) {}

  // What the variable may be.  Parsing does not refuse another value: FlagSet::OutOfRange says which are wrong.
  VariableFlag& Range(T low, T high) {
    limits_.emplace(std::move(low), std::move(high));
    return *this;
  }
  VariableFlag& RangeOrZero(T low, T high) {
    or_zero_ = true;
    return Range(std::move(low), std::move(high));
  }

  bool Set(absl::string_view text, std::string* error) override { return ParseValue(text, variable_, error); }
  std::string text() const override { return ValueText(*variable_); }
  std::optional<Bounds> bounds() const override {
    if (!limits_.has_value()) return std::nullopt;
    return Bounds{ValueText(limits_->first), ValueText(limits_->second)};
  }
  std::optional<Bounds> Broken() const override {
    if (!limits_.has_value() || (or_zero_ && *variable_ == T())) return std::nullopt;
    if (*variable_ >= limits_->first && *variable_ <= limits_->second) return std::nullopt;
    return bounds();
  }

 private:
  T* const variable_;
  std::optional<std::pair<T, T>> limits_;
  bool or_zero_ = false;
};

// A flag without a variable of its own: a function takes its text, and returns what it must be, or "" if it is.
class FunctionFlag final : public Flag {
 public:
  using TakeFn = std::function<std::string(absl::string_view text)>;
  FunctionFlag(absl::string_view name, std::string default_text, TakeFn take);

  bool Set(absl::string_view text, std::string* error) override;
  std::string text() const override { return text_; }

 private:
  const TakeFn take_;
  std::string text_;
};

}  // namespace switchyard
