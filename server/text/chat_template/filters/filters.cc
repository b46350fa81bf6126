// Filters and tests by name, and the filters that apply another filter or test by name: map, select, reject, selectattr
// and rejectattr.
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
namespace {

// The arguments after the first `n`.
Args Without(const Args& args, size_t n) {
  return {{args.positional.begin() + static_cast<ptrdiff_t>(n), args.positional.end()}, args.named};
}

absl::StatusOr<Value> MapAttribute(Runtime& runtime, const SequencePtr& items, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("map", args, {"attribute", "default"}, 1));
  std::vector<Value> out;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value value, DigAttribute(runtime, item, bound.Get(0)));
    if (value.IsUndefined() && !bound.Get(1).IsNone()) value = bound.Get(1);
    out.push_back(std::move(value));
  }
  return runtime.NewIterator(std::move(out));
}

absl::StatusOr<Value> Map(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  if (args.positional.empty()) return MapAttribute(runtime, items, args);
  if (!args.positional[0].IsString()) return Error("map: the filter's name must be str");
  const Args rest = Without(args, 1);
  std::vector<Value> out;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(AppendTo(ApplyFilter(runtime, args.positional[0].AsString(), item, rest), &out));
  }
  return runtime.NewIterator(std::move(out));
}

// Keeps the items for which the test (or, without one, truth) is `kWanted`; kByAttribute tests an attribute of them.
template <bool kWanted, bool kByAttribute>
absl::StatusOr<Value> Select(Runtime& runtime, const Value& input, const Args& args) {
  constexpr size_t kTestPlace = kByAttribute ? 1 : 0;
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  if (args.positional.size() < kTestPlace) return Error("the filter needs the name of an attribute");
  const bool has_test = args.positional.size() > kTestPlace;
  if (has_test && !args.positional[kTestPlace].IsString()) return Error("the name of a test must be str");
  const Args rest = has_test ? Without(args, kTestPlace + 1) : Args{};
  std::vector<Value> out;
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(runtime.Steps());
    Value tested = item;
    if constexpr (kByAttribute) {
      ASSIGN_OR_RETURN(tested, DigAttribute(runtime, item, args.positional[0]));
    }
    bool passes = tested.Truth();
    if (has_test) {
      ASSIGN_OR_RETURN(passes, ApplyTest(runtime, args.positional[kTestPlace].AsString(), tested, rest));
    }
    if (passes == kWanted) out.push_back(item);
  }
  return runtime.NewIterator(std::move(out));
}

constexpr Named<Filter> kSelectionFilters[] = {
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
};

}  // namespace

Filter FindFilter(absl::string_view name) {
  for (const auto find : {FindTextFilter, FindValueFilter, FindListFilter}) {
    if (const Filter filter = find(name)) return filter;
  }
  return FindNamed(kSelectionFilters, name);
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
