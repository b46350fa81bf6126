#include "server/text/chat_template/interpreter/methods.h"

#include <algorithm>

#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

absl::StatusOr<Value> NewView(Runtime& runtime, std::vector<Value> items, absl::string_view type) {
  return runtime.NewSequence({SequenceKind::kView, std::move(items), std::string(type)});
}

absl::StatusOr<Value> DictGet(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("get", args, {"key", "default"}, 1));
  RETURN_IF_ERROR(runtime.StepsForKey(bound.Get(0)));
  if (!HashKey(bound.Get(0)).has_value()) return Error("unhashable type: '", bound.Get(0).TypeName(), "'");
  const Value* found = self.dict()->Find(bound.Get(0));
  return found != nullptr ? *found : bound.Get(1);
}

absl::StatusOr<Value> DictItems(Runtime& runtime, const Value& self, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("items", args, {}).status());
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->items()) {
    RETURN_IF_ERROR(AppendTo(runtime.NewTuple({key, value}), &items));
  }
  return NewView(runtime, std::move(items), "dict_items");
}

template <bool kKeys>
absl::StatusOr<Value> DictParts(Runtime& runtime, const Value& self, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind(kKeys ? "keys" : "values", args, {}).status());
  std::vector<Value> parts;
  for (const auto& [key, value] : self.dict()->items()) parts.push_back(kKeys ? key : value);
  return NewView(runtime, std::move(parts), kKeys ? "dict_keys" : "dict_values");
}

// Values never change, so a copy is the value itself.
absl::StatusOr<Value> Copy(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("copy", args, {}).status());
  return self;
}

absl::StatusOr<Value> SequenceCount(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("count", args, {"value"}, 1));
  int64_t count = 0;
  for (const Value& item : self.sequence()->items) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, item, bound.Get(0)));
    count += equal ? 1 : 0;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> SequenceIndex(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("index", args, {"value", "start", "stop"}, 1));
  const auto& items = self.sequence()->items;
  ASSIGN_OR_RETURN(const SliceIndices at,
                   ResolveSlice(bound.Get(1), bound.Get(2), Value::None(), static_cast<int64_t>(items.size())));
  for (int64_t i = at.begin; i < at.begin + at.count; ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(runtime, items[static_cast<size_t>(i)], bound.Get(0)));
    if (equal) return Value::Int(i);
  }
  return Error("index: the value is not in the ", self.TypeName());
}

constexpr absl::string_view kListMutating[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
constexpr absl::string_view kDictMutating[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr absl::string_view kStringUnsupported[] = {"encode",       "expandtabs",  "format_map", "isascii",
                                                    "isidentifier", "isprintable", "istitle",    "maketrans",
                                                    "swapcase",     "translate"};

bool Has(absl::Span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr Named<Method> kSequenceMethods[] = {{"count", SequenceCount}, {"index", SequenceIndex}, {"copy", Copy}};
constexpr Named<Method> kDictMethods[] = {
    {"get", DictGet}, {"items", DictItems}, {"keys", DictParts<true>}, {"values", DictParts<false>}, {"copy", Copy},
};

Method MethodOf(const Value& self, absl::string_view name) {
  if (self.IsString()) return FindStringMethod(name);
  if (self.dict() != nullptr) return FindNamed(kDictMethods, name);
  if (self.IsTuple() && name == "copy") return nullptr;
  return self.IsList() || self.IsTuple() ? FindNamed(kSequenceMethods, name) : nullptr;
}

}  // namespace

MethodKind FindMethod(const Value& self, absl::string_view name) {
  if (MethodOf(self, name) != nullptr) return MethodKind::kCallable;
  if (self.IsList() && Has(kListMutating, name)) return MethodKind::kMutating;
  if (self.dict() != nullptr && Has(kDictMutating, name)) return MethodKind::kMutating;
  if (self.dict() != nullptr && name == "fromkeys") return MethodKind::kUnsupported;
  if (self.IsString() && Has(kStringUnsupported, name)) return MethodKind::kUnsupported;
  return MethodKind::kAbsent;
}

absl::StatusOr<Value> CallMethod(Runtime& runtime, const Value& self, absl::string_view name, const Args& args) {
  return MethodOf(self, name)(runtime, self, args);
}

}  // namespace switchyard::jinja
