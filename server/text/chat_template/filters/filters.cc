#include "server/text/chat_template/filters/filters.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {

Filter FindFilter(absl::string_view name) {
  static const auto* const kTable = [] {
    auto* table = new FilterTable;
    AddTextFilters(table);
    AddValueFilters(table);
    AddListFilters(table);
    AddSelectionFilters(table);
    return table;
  }();
  const auto it = kTable->find(name);
  return it == kTable->end() ? nullptr : it->second;
}

absl::StatusOr<Value> ApplyFilter(Runtime& runtime, absl::string_view name, const Value& input, const Args& args) {
  const Filter filter = FindFilter(name);
  if (filter == nullptr) return Error("no filter named '", name, "'");
  return filter(runtime, input, args);
}

absl::StatusOr<bool> ApplyTest(Runtime& runtime, absl::string_view name, const Value& input, const Args& args) {
  const Test test = FindTest(name);
  if (test == nullptr) return Error("no test named '", name, "'");
  return test(runtime, input, args);
}

absl::StatusOr<Value> DigAttribute(Runtime& runtime, const Value& item, const Value& attribute) {
  if (attribute.IsNone()) return item;
  if (!attribute.IsString()) return GetItem(runtime, item, attribute);
  Value value = item;
  for (absl::string_view part : absl::StrSplit(attribute.AsString(), '.')) {
    RETURN_IF_ERROR(runtime.StepsForBytes(part.size()));
    int64_t index = 0;
    const bool is_index =
        !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit) && absl::SimpleAtoi(part, &index);
    const Value key = is_index ? Value::Int(index) : Value::String(std::string(part));
    ASSIGN_OR_RETURN(value, GetItem(runtime, value, key));
  }
  return value;
}

absl::StatusOr<Value> WithoutCase(Runtime& runtime, const Value& value) {
  if (!value.IsString()) return value;
  RETURN_IF_ERROR(runtime.StepsForCharacters(value.AsString().size()));
  return runtime.NewString(ToLower(value.AsString()));
}

}  // namespace switchyard::jinja
