#include "server/text/chat_template/filters/python_text.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"

namespace switchyard::jinja {
namespace {

void AppendEscaped(int32_t c, std::string* out) {
  if (c <= 0xFF) {
    absl::StrAppendFormat(out, "\\x%02x", c);
  } else if (c <= 0xFFFF) {
    absl::StrAppendFormat(out, "\\u%04x", c);
  } else {
    absl::StrAppendFormat(out, "\\U%08x", c);
  }
}

absl::Status AppendRepr(Runtime& runtime, const Value& value, std::string* out);

absl::Status AppendSequence(Runtime& runtime, const Sequence& sequence, std::string* out) {
  const bool is_tuple = sequence.kind == SequenceKind::kTuple;
  if (sequence.kind == SequenceKind::kRange) {
    out->append(sequence.label);
    return absl::OkStatus();
  }
  if (sequence.kind == SequenceKind::kView) absl::StrAppend(out, sequence.label, "(");
  out->push_back(is_tuple ? '(' : '[');
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out->append(", ");
    RETURN_IF_ERROR(AppendRepr(runtime, sequence.items[i], out));
  }
  if (is_tuple && sequence.items.size() == 1) out->push_back(',');
  out->push_back(is_tuple ? ')' : ']');
  if (sequence.kind == SequenceKind::kView) out->push_back(')');
  return absl::OkStatus();
}

absl::Status AppendDict(Runtime& runtime, const Dict& dict, std::string* out) {
  out->push_back('{');
  bool first = true;
  for (const auto& [key, value] : dict.items()) {
    if (!first) out->append(", ");
    first = false;
    RETURN_IF_ERROR(AppendRepr(runtime, key, out));
    out->append(": ");
    RETURN_IF_ERROR(AppendRepr(runtime, value, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status AppendRepr(Runtime& runtime, const Value& value, std::string* out) {
  // A value with shared parts may print as far more text than it takes in memory, so the growing text is checked.
  RETURN_IF_ERROR(runtime.Steps());
  if (out->size() > runtime.limits().max_value_bytes) return runtime.Allocate(out->size());
  if (const Sequence* sequence = value.sequence()) return AppendSequence(runtime, *sequence, out);
  if (const Dict* dict = value.dict()) return AppendDict(runtime, *dict, out);
  if (value.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(value.AsString().size()));
    out->append(StringRepr(value.AsString()));
  } else if (value.IsUndefined()) {
    out->append("Undefined");
  } else if (value.IsNone()) {
    out->append("None");
  } else if (value.IsBool()) {
    out->append(value.AsBool() ? "True" : "False");
  } else if (value.IsInt()) {
    absl::StrAppend(out, value.AsInt());
  } else if (value.IsFloat()) {
    out->append(FloatRepr(value.AsDouble()));
  } else {
    out->append(value.object()->Repr());
  }
  return absl::OkStatus();
}

}  // namespace

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const absl::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed.append(".0");
  return fixed;
}

std::string StringRepr(absl::string_view text) {
  const bool has_single = text.find('\'') != kNone;
  const char quote = has_single && text.find('"') == kNone ? '"' : '\'';
  std::string out(1, quote);
  ForEachCodePoint(text, [&](int32_t c, absl::string_view character) {
    if (c == quote || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (IsPrintable(c)) {
      absl::StrAppend(&out, character);
    } else {
      AppendEscaped(c, &out);
    }
  });
  out.push_back(quote);
  return out;
}

absl::StatusOr<std::string> Repr(Runtime& runtime, const Value& value) {
  std::string out;
  RETURN_IF_ERROR(AppendRepr(runtime, value, &out));
  return out;
}

absl::StatusOr<std::string> Str(Runtime& runtime, const Value& value) {
  if (value.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForBytes(value.AsString().size()));
    return value.AsString();
  }
  if (value.IsUndefined()) return std::string();
  return Repr(runtime, value);
}

}  // namespace switchyard::jinja
