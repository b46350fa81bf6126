#include "server/text/chat_template/value_json.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Value> Convert(Runtime& runtime, const Json& json, int depth) {
  if (depth > runtime.limits().max_value_depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template's variables are nested more than ", runtime.limits().max_value_depth, " deep"));
  }
  switch (json.type()) {
    case Json::value_t::null:
      return Value::None();
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Error("the integer ", json.get<uint64_t>(), " does not fit 64 bits with a sign");
      }
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return runtime.NewString(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) RETURN_IF_ERROR(AppendTo(Convert(runtime, item, depth + 1), &items));
      return runtime.NewList(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        ASSIGN_OR_RETURN(Value value, Convert(runtime, item, depth + 1));
        if (!dict.Set(Value::String(key), std::move(value))) return Error("a key cannot be hashed");
      }
      return runtime.NewDict(std::move(dict));
    }
    default:
      return Error("the template's variables hold binary data");
  }
}

class Dumper {
 public:
  Dumper(Runtime* runtime, const DumpOptions& options) : runtime_(*runtime), options_(options) {}

  absl::Status Dump(const Value& value, int level) {
    RETURN_IF_ERROR(runtime_.Steps());
    if (out_.size() > runtime_.limits().max_value_bytes) return runtime_.Allocate(out_.size());
    if (value.IsString()) return DumpString(value.AsString());
    if (value.IsNone() || value.IsNumber()) {
      out_ += Scalar(value);
      return absl::OkStatus();
    }
    if (value.IsList() || value.IsTuple()) return DumpList(value.sequence()->items, level);
    if (value.dict() != nullptr) return DumpDict(*value.dict(), level);
    return Error("Object of type ", value.TypeName(), " is not JSON serializable");
  }
  std::string Take() { return std::move(out_); }

 private:
  static std::string Scalar(const Value& value) {
    if (value.IsNone()) return "null";
    if (value.IsBool()) return value.AsBool() ? "true" : "false";
    if (value.IsInt()) return absl::StrCat(value.AsInt());
    const double d = value.AsDouble();
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(d);
  }

  void AppendEscape(int32_t c) {
    if (c > 0xFFFF) {
      absl::StrAppendFormat(&out_, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      absl::StrAppendFormat(&out_, "\\u%04x", c);
    }
  }

  absl::Status DumpString(absl::string_view text) {
    static constexpr absl::string_view kEscaped = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    RETURN_IF_ERROR(runtime_.StepsForCharacters(text.size()));
    out_.push_back('"');
    ForEachCodePoint(text, [&](int32_t c, absl::string_view character) {
      const size_t simple = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : kNone;
      if (simple != kNone) {
        out_.push_back('\\');
        out_.push_back(kTo[simple]);
      } else if (c < 0x20 || (options_.ensure_ascii && c > 0x7F)) {
        AppendEscape(c);
      } else {
        absl::StrAppend(&out_, character);
      }
    });
    out_.push_back('"');
    return absl::OkStatus();
  }

  void NewLine(int level) {
    if (!options_.indent.has_value()) return;
    out_.push_back('\n');
    for (int i = 0; i < level; ++i) out_ += *options_.indent;
  }

  absl::Status DumpList(const std::vector<Value>& items, int level) {
    out_.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += options_.item_separator;
      NewLine(level + 1);
      RETURN_IF_ERROR(Dump(items[i], level + 1));
    }
    if (!items.empty()) NewLine(level);
    out_.push_back(']');
    return absl::OkStatus();
  }

  absl::Status DumpKey(const Value& key) {
    if (key.IsString()) return DumpString(key.AsString());
    if (!key.IsNone() && !key.IsNumber())
      return Error("keys must be str, int, float, bool or None, not ", key.TypeName());
    return DumpString(Scalar(key));
  }

  absl::Status DumpDict(const Dict& dict, int level) {
    std::vector<size_t> places(dict.size());
    std::iota(places.begin(), places.end(), size_t{0});
    if (options_.sort_keys) {
      std::vector<Value> keys;
      for (const auto& [key, value] : dict.items()) keys.push_back(key);
      ASSIGN_OR_RETURN(places, SortedPlaces(runtime_, keys, false));
    }
    out_.push_back('{');
    for (size_t i = 0; i < places.size(); ++i) {
      const auto& [key, value] = dict.items()[places[i]];
      if (i > 0) out_ += options_.item_separator;
      NewLine(level + 1);
      RETURN_IF_ERROR(DumpKey(key));
      out_ += options_.key_separator;
      RETURN_IF_ERROR(Dump(value, level + 1));
    }
    if (!places.empty()) NewLine(level);
    out_.push_back('}');
    return absl::OkStatus();
  }

  Runtime& runtime_;
  const DumpOptions& options_;
  std::string out_;
};

}  // namespace

absl::StatusOr<Value> FromJson(Runtime& runtime, const Json& json) { return Convert(runtime, json, 1); }

absl::StatusOr<std::string> DumpJson(Runtime& runtime, const Value& value, const DumpOptions& options) {
  Dumper dumper(&runtime, options);
  RETURN_IF_ERROR(dumper.Dump(value, 0));
  return dumper.Take();
}

}  // namespace switchyard::jinja
