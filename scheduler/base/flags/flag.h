// One row of a program's table of flags: its name, the variable that it sets, and what --help says of it.
//
// FlagSet::Add makes a row with its help and its group; further properties are chained:
//
//   flags.Add("port", &config->port, "gRPC port; 0 = any free one").Range(0, 65535);
//   flags.Add("device=NAME", &config->device, "...").Alias("dev").Mark(kForWorkers);
//
// The text behind a name's "=" stands for the value in --help.  The variable's value when the row is made is the flag's
// default.  Values are written as Abseil's flags have them: 8080, 0x1f, 0.5, true, yes, no, 90s, 1h30m.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard {

// Returns false if `text` is no such value; *error may say why.
template <class T>
bool ParseValue(absl::string_view text, T* out, std::string* error) {
  return absl::ParseFlag(text, out, error);
}
template <class T>
bool ParseValue(absl::string_view text, std::optional<T>* out, std::string* error) {
  return ParseValue(text, &out->emplace(), error);
}
// Each value that is given comes behind those before it.
template <class T>
bool ParseValue(absl::string_view text, std::vector<T>* out, std::string* error) {
  T one = {};
  if (!ParseValue(text, &one, error)) return false;
  out->push_back(std::move(one));
  return true;
}

template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// A text that ParseValue reads as the same value; "" for lists and optional values, which have no single text.
template <class T>
std::string ValueText(const T& value) {
  if constexpr (kIsList<T> || kIsOptional<T>) {
    return "";
  } else {
    return absl::UnparseFlag<T>(value);
  }
}

template <class T>
constexpr const char* PlaceholderOf() {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::optional<int32_t>>) return "NUMBER";
  if constexpr (std::is_same_v<T, absl::Duration>) return "TIME";
  return "TEXT";
}

struct Flag {
  struct Bounds {
    std::string low, high;  // as ValueText
  };

  // `type_placeholder` is for a name without its own.
  Flag(absl::string_view name_and_placeholder, absl::string_view type_placeholder, std::string default_text);
  virtual ~Flag() = default;
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  // A further name that is accepted, but neither in --help nor suggested: the name before a renaming.
  Flag& Alias(absl::string_view alias);
  // Bits by which the table's owner finds rows again (FlagSet::Marked).
  Flag& Mark(uint32_t bits);
  // --help does not show the default: `help` says it, or there is none.
  Flag& NoDefault();
  // The flag has to be given.
  Flag& Required();

  // Sets the variable.  Returns false if the text is no value of it; *error may say why.
  virtual bool Set(absl::string_view text, std::string* error) = 0;
  // The variable as text; "" where it has none.
  virtual std::string text() const = 0;
  // The limits, if it has any.
  virtual std::optional<Bounds> bounds() const { return std::nullopt; }
  virtual bool InBounds() const { return true; }

  // `given`: with underscores; FlagSet::Find takes dashes, too.
  bool HasName(absl::string_view given) const;
  bool is_default() const { return text() == default_text; }

  const std::string name, placeholder, default_text;
  std::string help, group;
  std::vector<std::string> aliases;
  uint32_t marks = 0;
  bool shows_default = true;
  bool required = false;
  bool positional = false;  // it is given without its name
  bool is_bool = false;     // --name alone sets it; --noname takes it back
  bool is_list = false;     // every value that is given counts, not the last alone
  bool explains = false;    // the error of Set is what a value must be
  int times_given = 0;
  std::string given;  // the text that was given last
};

template <class T>
struct VariableFlag final : Flag {
  VariableFlag(absl::string_view name, T* to) : Flag(name, PlaceholderOf<T>(), ValueText(*to)), variable(to) {}

  // Sets the limits of the variable.  Parsing does not refuse another value: FlagSet::OutOfRange says which are wrong.
  VariableFlag& Range(T low, T high) {
    limits.emplace(std::move(low), std::move(high));
    return *this;
  }
  VariableFlag& RangeOrZero(T low, T high) {
    or_zero = true;
    return Range(std::move(low), std::move(high));
  }

  bool Set(absl::string_view text, std::string* error) override { return ParseValue(text, variable, error); }
  std::string text() const override { return ValueText(*variable); }
  std::optional<Bounds> bounds() const override {
    if (!limits.has_value()) return std::nullopt;
    return Bounds{ValueText(limits->first), ValueText(limits->second)};
  }
  bool InBounds() const override {
    if (!limits.has_value() || (or_zero && *variable == T())) return true;
    return *variable >= limits->first && *variable <= limits->second;
  }

  T* const variable;
  std::optional<std::pair<T, T>> limits;
  bool or_zero = false;
};

// A flag without a variable of its own: a function takes its text, and returns what it must be, or "" if it is.
struct FunctionFlag final : Flag {
  using TakeFn = std::function<std::string(absl::string_view text)>;
  FunctionFlag(absl::string_view name, std::string initial, TakeFn take_fn)
      : Flag(name, "TEXT", initial), take(std::move(take_fn)), last(std::move(initial)) {}

  bool Set(absl::string_view text, std::string* error) override;
  std::string text() const override { return last; }

  const TakeFn take;
  std::string last;
};

}  // namespace switchyard
