// Filters that take a sequence and give a sequence, an item or one value.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

using Items = std::vector<Value>;

absl::StatusOr<Value> List(Runtime& runtime, const Value& input, const Args&) {
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  return runtime.NewList(items->items);
}

absl::StatusOr<Value> First(Runtime& runtime, const Value& input, const Args&) {
  if (auto* iterator = dynamic_cast<Iterator*>(input.object())) {
    const Value* next = iterator->Next();
    return next != nullptr ? *next : Value::Undefined("no first item, the sequence was empty");
  }
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  return items->items.empty() ? Value::Undefined("no first item, the sequence was empty") : items->items.front();
}

absl::StatusOr<Value> Last(Runtime& runtime, const Value& input, const Args&) {
  if (input.object() != nullptr) return Error("'", input.TypeName(), "' object is not reversible");
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  return items->items.empty() ? Value::Undefined("no last item, the sequence was empty") : items->items.back();
}

absl::StatusOr<Value> Reverse(Runtime& runtime, const Value& input, const Args&) {
  if (input.IsString()) return GetSlice(runtime, input, Value::None(), Value::None(), Value::Int(-1));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  return runtime.NewIterator(Items(items->items.rbegin(), items->items.rend()));
}

absl::StatusOr<Value> Join(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("join", args, {"d", "attribute"}));
  ASSIGN_OR_RETURN(const std::string separator, Str(runtime, bound.Get(0, Value::String(""))));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  RETURN_IF_ERROR(runtime.Steps(static_cast<int64_t>(items->items.size())));
  std::string out;
  for (size_t i = 0; i < items->items.size(); ++i) {
    ASSIGN_OR_RETURN(const Value item, DigAttribute(runtime, items->items[i], bound.Get(1)));
    ASSIGN_OR_RETURN(const std::string text, Str(runtime, item));
    if (i > 0) out += separator;
    out += text;
    if (out.size() > runtime.limits().max_value_bytes) RETURN_IF_ERROR(runtime.Allocate(out.size()));
  }
  return runtime.NewString(std::move(out));
}

// How sorting makes an item's key: the item or its attribute, without case unless case_sensitive.
struct KeyOptions {
  Value attribute = Value::None();
  bool case_sensitive = false;
};
absl::StatusOr<Value> KeyOf(Runtime& runtime, const Value& item, const KeyOptions& options) {
  ASSIGN_OR_RETURN(const Value key, DigAttribute(runtime, item, options.attribute));
  if (options.case_sensitive) return key;
  return WithoutCase(runtime, key);
}

// The items in the order of their keys.
absl::StatusOr<Items> SortBy(Runtime& runtime, const Items& items, const Items& keys, bool reverse) {
  ASSIGN_OR_RETURN(const std::vector<size_t> places, SortedPlaces(runtime, keys, reverse));
  Items out;
  for (size_t place : places) out.push_back(items[place]);
  return out;
}

// Several attributes, "age,name", make one key that is a list.
absl::StatusOr<Value> Sort(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("sort", args, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  Items attributes = {bound.Get(2)};
  if (attributes[0].IsString()) {
    const std::string spelled = attributes[0].AsString();
    attributes.clear();
    for (absl::string_view name : absl::StrSplit(spelled, ',')) attributes.push_back(Value::String(std::string(name)));
  }
  Items keys;
  for (const Value& item : items->items) {
    Items parts;
    for (const Value& attribute : attributes) {
      RETURN_IF_ERROR(AppendTo(KeyOf(runtime, item, {attribute, bound.Flag(1, false)}), &parts));
    }
    RETURN_IF_ERROR(AppendTo(runtime.NewList(std::move(parts)), &keys));
  }
  ASSIGN_OR_RETURN(Items sorted, SortBy(runtime, items->items, keys, bound.Flag(0, false)));
  return runtime.NewList(std::move(sorted));
}

absl::StatusOr<Value> DictSort(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("dictsort", args, {"case_sensitive", "by", "reverse"}));
  RETURN_IF_ERROR(RequireDefined(input));
  if (input.dict() == nullptr) return Error("dictsort: a mapping is required, not ", input.TypeName());
  ASSIGN_OR_RETURN(const absl::string_view by, bound.Text(1, "key"));
  if (by != "key" && by != "value") return Error("dictsort: by must be \"key\" or \"value\"");
  Items pairs, keys;
  for (const auto& [key, value] : input.dict()->items()) {
    RETURN_IF_ERROR(AppendTo(runtime.NewTuple({key, value}), &pairs));
    RETURN_IF_ERROR(
        AppendTo(KeyOf(runtime, by == "key" ? key : value, {.case_sensitive = bound.Flag(0, false)}), &keys));
  }
  ASSIGN_OR_RETURN(Items sorted, SortBy(runtime, pairs, keys, bound.Flag(2, false)));
  return runtime.NewList(std::move(sorted));
}

template <bool kMax>
absl::StatusOr<Value> Extreme(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind(kMax ? "max" : "min", args, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  if (items->items.empty()) return Value::Undefined("no aggregated item, the sequence was empty");
  const KeyOptions options{bound.Get(1), bound.Flag(0, false)};
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, item, options));
    if (best != nullptr) {
      ASSIGN_OR_RETURN(const std::optional<int> order, Order(runtime, key, best_key));
      if (!order.has_value() || (kMax ? *order <= 0 : *order >= 0)) continue;
    }
    best = &item;
    best_key = key;
  }
  return *best;
}

absl::StatusOr<Value> Unique(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("unique", args, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  Dict seen;
  Items out;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(const Value key, KeyOf(runtime, item, {bound.Get(1), bound.Flag(0, false)}));
    RETURN_IF_ERROR(runtime.StepsForKey(key));
    const size_t before = seen.size();
    if (!seen.Set(key, Value::None())) return Error("unhashable type: '", key.TypeName(), "'");
    if (seen.size() > before) out.push_back(item);
  }
  return runtime.NewIterator(std::move(out));
}

absl::StatusOr<Value> Sum(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("sum", args, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  Value total = bound.Get(1, Value::Int(0));
  if (total.IsString()) return Error("sum() can't sum strings");
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(const Value part, DigAttribute(runtime, item, bound.Get(0)));
    ASSIGN_OR_RETURN(total, Arithmetic(runtime, ast::BinaryOp::kAdd, total, part));
  }
  return total;
}

absl::StatusOr<Value> Batch(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("batch", args, {"linecount", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const int64_t per_batch, bound.Int(0, 1));
  if (per_batch <= 0) return Error("batch: linecount must be positive, is ", per_batch);
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  Items batches;
  for (size_t begin = 0; begin < items->items.size();) {
    const size_t end = std::min(items->items.size(), begin + static_cast<size_t>(per_batch));
    Items batch(items->items.begin() + static_cast<ptrdiff_t>(begin),
                items->items.begin() + static_cast<ptrdiff_t>(end));
    if (!bound.Get(1).IsNone()) {
      RETURN_IF_ERROR(
          runtime.Allocate(std::min<size_t>(static_cast<size_t>(per_batch), size_t{1} << 48) * sizeof(Value)));
      batch.resize(static_cast<size_t>(per_batch), bound.Get(1));
    }
    RETURN_IF_ERROR(AppendTo(runtime.NewList(std::move(batch)), &batches));
    begin = end;
  }
  return runtime.NewIterator(std::move(batches));
}

absl::StatusOr<Value> Slice(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("slice", args, {"slices", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const int64_t num_slices, bound.Int(0, 1));
  if (num_slices <= 0) return Error("slice: the number of slices must be positive, is ", num_slices);
  RETURN_IF_ERROR(runtime.Steps(num_slices));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  const auto length = static_cast<int64_t>(items->items.size());
  const int64_t each = length / num_slices, with_extra = length % num_slices;
  auto next = items->items.begin();
  Items slices;
  for (int64_t i = 0; i < num_slices; ++i) {
    const auto end = next + each + (i < with_extra ? 1 : 0);
    Items slice(next, end);
    if (!bound.Get(1).IsNone() && i >= with_extra) slice.push_back(bound.Get(1));
    RETURN_IF_ERROR(AppendTo(runtime.NewList(std::move(slice)), &slices));
    next = end;
  }
  return runtime.NewIterator(std::move(slices));
}

absl::StatusOr<Value> GroupBy(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, input));
  Items keys, raw_keys;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value key, DigAttribute(runtime, item, bound.Get(0)));
    if (key.IsUndefined() && !bound.Get(1).IsNone()) key = bound.Get(1);
    RETURN_IF_ERROR(AppendTo(KeyOf(runtime, key, {.case_sensitive = bound.Flag(2, false)}), &keys));
    raw_keys.push_back(std::move(key));
  }
  ASSIGN_OR_RETURN(const std::vector<size_t> places, SortedPlaces(runtime, keys, false));
  Items groups;
  for (size_t i = 0; i < places.size();) {
    const size_t first = places[i];
    Items members;
    for (; i < places.size(); ++i) {
      ASSIGN_OR_RETURN(const bool same, Equal(runtime, keys[first], keys[places[i]]));
      if (!same) break;
      members.push_back(items->items[places[i]]);
    }
    ASSIGN_OR_RETURN(const Value list, runtime.NewList(std::move(members)));
    RETURN_IF_ERROR(AppendTo(runtime.NewTuple({raw_keys[first], list}), &groups));
  }
  return runtime.NewList(std::move(groups));
}

constexpr Named<Filter> kListFilters[] = {
    {"batch", Batch}, {"dictsort", DictSort}, {"first", First},       {"groupby", GroupBy},    {"join", Join},
    {"last", Last},   {"list", List},         {"max", Extreme<true>}, {"min", Extreme<false>}, {"reverse", Reverse},
    {"slice", Slice}, {"sort", Sort},         {"sum", Sum},           {"unique", Unique},
};

}  // namespace

Filter FindListFilter(absl::string_view name) { return FindNamed(kListFilters, name); }

}  // namespace switchyard::jinja
