#include "server/text/chat_template/filters/format.h"

#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

absl::StatusOr<std::string> FormatOne(Runtime& runtime, const Value& value, absl::string_view spec_text) {
  if (spec_text.empty()) return Str(runtime, value);
  ASSIGN_OR_RETURN(FormatSpec spec, ParseFormatSpec(spec_text));
  const bool is_number = value.IsNumber() && !(value.IsBool() && spec.type == 0);
  const absl::string_view types = value.IsFloat() ? "efgEFG%" : is_number ? "dbxXoefgEFG%" : "s";
  if (spec.type != 0 && types.find(spec.type) == kNone) {
    return Error("unknown format code '", std::string(1, spec.type), "' for '", value.TypeName(), "'");
  }
  if (!is_number && !value.IsString() && !value.IsBool())
    return Error("unsupported format string passed to ", value.TypeName());
  if (is_number) return FormatNumber(runtime, value, std::move(spec));
  ASSIGN_OR_RETURN(std::string text, Str(runtime, value));
  return FormatText(runtime, std::move(text), spec, '<');
}

// Hands out the arguments of a % format.
class PercentArguments {
 public:
  // Borrows the value.
  explicit PercentArguments(const Value& value)
      : value_(value),
        items_(value.IsTuple() ? absl::MakeConstSpan(value.sequence()->items) : absl::MakeConstSpan(&value, 1)) {}

  absl::StatusOr<Value> Next() {
    if (used_ >= items_.size()) return Error("not enough arguments for format string");
    return items_[used_++];
  }
  absl::StatusOr<Value> Named(absl::string_view name) {
    named_ = true;
    if (value_.dict() == nullptr) return Error("format requires a mapping");
    const Value* found = value_.dict()->Find(name);
    if (found == nullptr) return Error("no value for %(", name, ") in the format string's arguments");
    return *found;
  }
  bool AllUsed() const { return named_ || value_.dict() != nullptr || value_.IsList() || used_ >= items_.size(); }

 private:
  const Value& value_;
  const absl::Span<const Value> items_;  // of a tuple; else the value itself
  size_t used_ = 0;
  bool named_ = false;
};

absl::StatusOr<std::string> PercentOne(Runtime& runtime, const Value& value, FormatSpec spec) {
  if (spec.type == 's' || spec.type == 'r') {
    ASSIGN_OR_RETURN(std::string text, spec.type == 's' ? Str(runtime, value) : Repr(runtime, value));
    return FormatText(runtime, std::move(text), spec, '>');
  }
  if (absl::string_view("diuxXoeEfFgG").find(spec.type) == kNone)
    return Error("unsupported format character in a % format");
  if (!value.IsNumber()) return Error("% format: a number is required, not ", value.TypeName());
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  if (absl::string_view("dxXo").find(spec.type) != kNone) {
    if (!value.IsFloat()) return FormatNumber(runtime, value, std::move(spec));
    if (spec.type != 'd' || !(std::abs(value.AsDouble()) < 9.2e18))
      return Error("% format: an integer is required, not float");
    return FormatNumber(runtime, Value::Int(static_cast<int64_t>(value.AsDouble())), std::move(spec));
  }
  return FormatNumber(runtime, Value::Float(value.AsDouble()), std::move(spec));
}

// The flags, width and precision of a %-field.
FormatSpec TakePercentSpec(absl::string_view* text) {
  FormatSpec spec;
  bool zero = false;
  while (!text->empty() && absl::string_view("-+ #0").find(text->front()) != kNone) {
    const char flag = text->front();
    text->remove_prefix(1);
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    if (flag == '#') spec.alternate = true;
    zero |= flag == '0';
  }
  if (zero && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = TakeNumber(text);
  if (TakeChar(text, '.')) spec.precision = static_cast<int>(std::min<int64_t>(TakeNumber(text), 1 << 20));
  if (!text->empty()) {
    spec.type = text->front();
    text->remove_prefix(1);
  }
  if (spec.type == 's' || spec.type == 'r') {
    spec.fill = " ";
    if (spec.align == '=') spec.align = '>';
  }
  return spec;
}

// A field's value: "name", "0" or "" and then ".attribute" and "[item]" parts.
absl::StatusOr<Value> FieldValue(Runtime& runtime, absl::string_view field, const Args& args, size_t* next_auto) {
  size_t end = std::min(field.find_first_of(".["), field.size());
  const absl::string_view first = field.substr(0, end);
  Value value;
  int64_t place = 0;
  if (first.empty() || absl::SimpleAtoi(first, &place)) {
    const size_t i = first.empty() ? (*next_auto)++ : static_cast<size_t>(place);
    if (i >= args.positional.size()) return Error("format: no argument ", i, " among ", args.positional.size());
    value = args.positional[i];
  } else {
    RETURN_IF_ERROR(runtime.Steps(static_cast<int64_t>(args.named.size())));
    bool found = false;
    for (const auto& [name, named] : args.named) {
      if (first == name) value = named, found = true;
    }
    if (!found) return Error("format: no argument '", first, "'");
  }
  for (field.remove_prefix(end); !field.empty(); field.remove_prefix(end)) {
    RETURN_IF_ERROR(runtime.Steps());
    const bool is_item = field[0] == '[';
    end = is_item ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
    if (end == kNone || (!is_item && field[0] != '.')) return Error("format: malformed field name");
    const absl::string_view part = field.substr(1, end - 1);
    if (is_item) ++end;
    Value key = Value::String(std::string(part));
    if (is_item && absl::SimpleAtoi(part, &place)) key = Value::Int(place);
    ASSIGN_OR_RETURN(value, is_item ? GetItem(runtime, value, key) : GetAttribute(runtime, value, part));
  }
  return value;
}

// One field's text; `field` is the text between its braces.
absl::StatusOr<std::string> FormatField(Runtime& runtime, absl::string_view field, const Args& args,
                                        size_t* next_auto) {
  const size_t colon = std::min(field.find(':'), field.size());
  absl::string_view name = field.substr(0, colon);
  const absl::string_view spec = colon < field.size() ? field.substr(colon + 1) : absl::string_view();
  const bool converts = name.size() >= 2 && name[name.size() - 2] == '!';
  const char conversion = converts ? name.back() : ' ';
  if (converts) name.remove_suffix(2);
  ASSIGN_OR_RETURN(Value value, FieldValue(runtime, name, args, next_auto));
  if (conversion == 'r' || conversion == 's') {
    ASSIGN_OR_RETURN(std::string text, conversion == 'r' ? Repr(runtime, value) : Str(runtime, value));
    value = Value::String(std::move(text));
  } else if (converts) {
    return Error("format: unknown conversion");
  }
  return FormatOne(runtime, value, spec);
}

}  // namespace

absl::StatusOr<std::string> FormatPercent(Runtime& runtime, absl::string_view text, const Value& arguments) {
  PercentArguments source(arguments);
  std::string out;
  while (!text.empty()) {
    RETURN_IF_ERROR(runtime.Steps());
    const size_t percent = std::min(text.find('%'), text.size());
    out.append(std::string(text.substr(0, percent)));
    text.remove_prefix(percent);
    if (text.empty()) break;
    text.remove_prefix(1);
    std::optional<Value> value;
    if (TakeChar(&text, '(')) {
      const size_t close = text.find(')');
      if (close == kNone) return Error("incomplete % format key");
      RETURN_IF_ERROR(runtime.StepsForBytes(close));
      ASSIGN_OR_RETURN(value, source.Named(text.substr(0, close)));
      text.remove_prefix(close + 1);
    }
    FormatSpec spec = TakePercentSpec(&text);
    if (spec.type == 0) return Error("incomplete % format");
    if (spec.type == '%') {
      out.push_back('%');
      continue;
    }
    if (!value.has_value()) {
      ASSIGN_OR_RETURN(value, source.Next());
    }
    ASSIGN_OR_RETURN(const std::string piece, PercentOne(runtime, *value, std::move(spec)));
    out += piece;
    if (out.size() > runtime.limits().max_value_bytes) RETURN_IF_ERROR(runtime.Allocate(out.size()));
  }
  if (!source.AllUsed()) return Error("not all arguments converted during string formatting");
  return out;
}

absl::StatusOr<std::string> FormatBraces(Runtime& runtime, absl::string_view text, const Args& args) {
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  std::string out;
  size_t next_auto = 0;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if ((c == '{' || c == '}') && TakeChar(&text, c)) {
      out.push_back(c);
    } else if (c == '}') {
      return Error("single '}' in a format string");
    } else if (c == '{') {
      const size_t close = text.find('}');
      if (close == kNone) return Error("single '{' in a format string");
      if (text.substr(0, close).find('{') != kNone) return Error("nested fields in a format string are not supported");
      RETURN_IF_ERROR(runtime.Steps());
      ASSIGN_OR_RETURN(const std::string piece, FormatField(runtime, text.substr(0, close), args, &next_auto));
      out += piece;
      if (out.size() > runtime.limits().max_value_bytes) RETURN_IF_ERROR(runtime.Allocate(out.size()));
      text.remove_prefix(close + 1);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace switchyard::jinja
