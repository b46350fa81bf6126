// Filters on single values: numbers, defaults, lengths, attributes.
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

absl::StatusOr<Value> Abs(Runtime&, const Value& input, const Args&) {
  RETURN_IF_ERROR(RequireDefined(input));
  if (input.IsFloat()) return Value::Float(std::abs(input.AsDouble()));
  if (input.IsIntegral()) return Signed(input, input.AsInt() < 0);
  return Error("bad operand type for abs(): '", input.TypeName(), "'");
}

absl::StatusOr<Value> Default(Runtime&, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("default", args, {"default_value", "boolean"}));
  const bool replaces = input.IsUndefined() || (bound.Flag(1, false) && !input.Truth());
  return replaces ? bound.Get(0, Value::String("")) : input;
}

absl::StatusOr<Value> LengthFilter(Runtime& runtime, const Value& input, const Args&) {
  ASSIGN_OR_RETURN(const int64_t length, Length(runtime, input));
  return Value::Int(length);
}

// Python's int(text, base) within 64 bits; nullopt where Python raises.
std::optional<int64_t> ParseInt(absl::string_view text, int base) {
  text = Strip(text, Side::kBoth);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  const absl::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && absl::AsciiStrToLower(text.substr(0, 2)) == prefix) text.remove_prefix(2);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool joins = text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (!joins) digits.push_back(text[i]);
  }
  if (negative) digits.insert(digits.begin(), '-');
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseFloat(absl::string_view text) {
  double value = 0;
  text = Strip(text, Side::kBoth);
  if (text.find_first_of("xX") != absl::string_view::npos || !absl::SimpleAtod(text, &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> TruncateToInt(double d) {
  if (!(std::abs(d) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(d);
}

absl::StatusOr<Value> IntFilter(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("int", args, {"default", "base"}));
  RETURN_IF_ERROR(RequireDefined(input));
  ASSIGN_OR_RETURN(const int64_t base, bound.Int(1, 10));
  if (base < 2 || base > 36) return Error("int: base must be from 2 to 36, is ", base);
  std::optional<int64_t> value;
  if (input.IsIntegral()) value = input.AsInt();
  if (input.IsFloat()) value = TruncateToInt(input.AsDouble());
  if (input.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(2 * input.AsString().size()));  // at worst it is read as either
    value = ParseInt(input.AsString(), static_cast<int>(base));
    const std::optional<double> number = value.has_value() ? std::nullopt : ParseFloat(input.AsString());
    if (number.has_value()) value = TruncateToInt(*number);
  }
  return value.has_value() ? Value::Int(*value) : bound.Get(0, Value::Int(0));
}

absl::StatusOr<Value> FloatFilter(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("float", args, {"default"}));
  RETURN_IF_ERROR(RequireDefined(input));
  std::optional<double> value;
  if (input.IsNumber()) value = input.AsDouble();
  if (input.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(input.AsString().size()));
    value = ParseFloat(input.AsString());
  }
  return value.has_value() ? Value::Float(*value) : bound.Get(0, Value::Float(0));
}

// Python's round(): half to even, on the decimal text of the number as C's printf rounds it.
absl::StatusOr<Value> RoundCommon(const Value& input, int64_t precision) {
  if (input.IsIntegral() && precision >= 0) return Value::Int(input.AsInt());
  const double d = input.AsDouble();
  if (!std::isfinite(d) || precision > 300) return input;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 400)));
    const double rounded = std::isinf(scale) ? 0.0 : std::nearbyint(d / scale) * scale;
    return input.IsIntegral() ? Value::Int(static_cast<int64_t>(rounded)) : Value::Float(rounded);
  }
  char buffer[700];
  snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), d);
  return Value::Float(std::strtod(buffer, nullptr));
}

absl::StatusOr<Value> Round(Runtime&, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("round", args, {"precision", "method"}));
  RETURN_IF_ERROR(RequireDefined(input));
  if (!input.IsNumber()) return Error("round: a number is required, not ", input.TypeName());
  ASSIGN_OR_RETURN(const int64_t precision, bound.Int(0, 0));
  ASSIGN_OR_RETURN(const absl::string_view method, bound.Text(1, "common"));
  if (method == "common") return RoundCommon(input, precision);
  if (method != "ceil" && method != "floor") return Error("round: method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.AsDouble() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

absl::StatusOr<Value> Attr(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("attr", args, {"name"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view name, bound.Text(0, ""));
  // Attributes only: an item of this name does not count.
  if (input.dict() != nullptr) {
    ASSIGN_OR_RETURN(const Value empty, runtime.NewDict(Dict()));
    return GetAttribute(runtime, empty, name);
  }
  return GetAttribute(runtime, input, name);
}

absl::StatusOr<Value> ItemsFilter(Runtime& runtime, const Value& input, const Args&) {
  if (input.IsUndefined()) return runtime.NewIterator({});
  if (input.dict() == nullptr) return Error("items: can only get pairs from a mapping");
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict()->items()) {
    RETURN_IF_ERROR(AppendTo(runtime.NewTuple({key, value}), &pairs));
  }
  return runtime.NewIterator(std::move(pairs));
}

constexpr Named<Filter> kValueFilters[] = {
    {"abs", Abs},           {"attr", Attr},     {"count", LengthFilter}, {"d", Default},           {"default", Default},
    {"float", FloatFilter}, {"int", IntFilter}, {"items", ItemsFilter},  {"length", LengthFilter}, {"round", Round},
};

}  // namespace

Filter FindValueFilter(absl::string_view name) { return FindNamed(kValueFilters, name); }

}  // namespace switchyard::jinja
