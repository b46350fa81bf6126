#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/methods.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

std::string Owner(const Value& object) {
  return object.IsNone() ? "'None'" : absl::StrCat("'", object.TypeName(), " object'");
}

Value NoAttribute(const Value& object, absl::string_view name) {
  return Value::Undefined(absl::StrCat(Owner(object), " has no attribute '", name, "'"));
}

// Returns the real attribute, not an item of that name; nullopt if there is none.
absl::StatusOr<std::optional<Value>> OwnAttribute(Runtime& runtime, const Value& object, absl::string_view name) {
  if (Object* o = object.object()) return o->GetAttribute(runtime, name);
  switch (FindMethod(object, name)) {
    case MethodKind::kAbsent:
      return std::nullopt;
    case MethodKind::kMutating:
      return Value::Undefined(
          absl::StrCat("access to attribute '", name, "' of '", object.TypeName(), "' object is unsafe"));
    case MethodKind::kUnsupported:
      return Value::Undefined(absl::StrCat("method '", name, "' of '", object.TypeName(), "' object is not supported"));
    case MethodKind::kCallable:
      break;
  }
  return NewFunction(runtime, name, [object, method = std::string(name)](Runtime& r, const Args& args) {
    return CallMethod(r, object, method, args);
  });
}

// Python's index of a sequence of this length: negative ones count from the end.  nullopt: outside.
std::optional<size_t> Place(int64_t index, size_t length) {
  if (index < 0) index += static_cast<int64_t>(length);
  if (index < 0 || index >= static_cast<int64_t>(length)) return std::nullopt;
  return static_cast<size_t>(index);
}

absl::StatusOr<std::optional<Value>> OwnItem(Runtime& runtime, const Value& object, const Value& index) {
  if (const Dict* dict = object.dict()) {
    RETURN_IF_ERROR(runtime.StepsForKey(index));
    const Value* found = dict->Find(index);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (!index.IsIntegral()) return std::nullopt;
  if (object.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(object.AsString().size()));
    const auto characters = SplitCodePoints(object.AsString());
    const std::optional<size_t> place = Place(index.AsInt(), characters.size());
    if (!place.has_value()) return std::nullopt;
    return Value::String(std::string(characters[*place]));
  }
  const Sequence* sequence = object.sequence();
  if (sequence == nullptr || sequence->kind == SequenceKind::kView) return std::nullopt;
  const std::optional<size_t> place = Place(index.AsInt(), sequence->items.size());
  return place.has_value() ? std::optional<Value>(sequence->items[*place]) : std::nullopt;
}

// Returns a slice's bound, clamped to [low, high].
absl::StatusOr<int64_t> Bounded(const Value& value, int64_t otherwise, int64_t length, int64_t low, int64_t high) {
  if (value.IsNone()) return otherwise;
  if (!value.IsIntegral()) return Error("slice indices must be integers or None, not ", value.TypeName());
  int64_t i = value.AsInt();
  if (i < 0) i += length;
  return std::clamp(i, low, high);
}

}  // namespace

absl::StatusOr<Value> NewFunction(Runtime& runtime, absl::string_view name, Function::Body body) {
  ASSIGN_OR_RETURN(Function * function, runtime.New<Function>(name, std::move(body)));
  return Value::Of(function);
}

absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& object, absl::string_view name) {
  RETURN_IF_ERROR(RequireDefined(object));
  ASSIGN_OR_RETURN(std::optional<Value> own, OwnAttribute(runtime, object, name));
  if (own.has_value()) return *std::move(own);
  if (const Dict* dict = object.dict()) {
    RETURN_IF_ERROR(runtime.StepsForBytes(name.size()));
    if (const Value* item = dict->Find(name)) return *item;
  }
  return NoAttribute(object, name);
}

absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& object, const Value& index) {
  RETURN_IF_ERROR(RequireDefined(object));
  ASSIGN_OR_RETURN(std::optional<Value> item, OwnItem(runtime, object, index));
  if (item.has_value()) return *std::move(item);
  if (index.IsString()) {
    ASSIGN_OR_RETURN(std::optional<Value> own, OwnAttribute(runtime, object, index.AsString()));
    return own.has_value() ? *std::move(own) : NoAttribute(object, index.AsString());
  }
  return Value::Undefined(absl::StrCat(Owner(object), " has no such element"));
}

absl::StatusOr<SliceIndices> ResolveSlice(const Value& start, const Value& stop, const Value& step, int64_t length) {
  SliceIndices out;
  if (!step.IsNone()) {
    if (!step.IsIntegral()) return Error("slice indices must be integers or None, not ", step.TypeName());
    out.step = std::clamp<int64_t>(step.AsInt(), -(int64_t{1} << 40), int64_t{1} << 40);
  }
  if (out.step == 0) return Error("slice step cannot be zero");
  const bool forward = out.step > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? length : length - 1;
  ASSIGN_OR_RETURN(out.begin, Bounded(start, forward ? low : high, length, low, high));
  ASSIGN_OR_RETURN(const int64_t end, Bounded(stop, forward ? high : low, length, low, high));
  const int64_t distance = forward ? end - out.begin : out.begin - end;
  const int64_t stride = forward ? out.step : -out.step;
  out.count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  return out;
}

absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                               const Value& step) {
  RETURN_IF_ERROR(RequireDefined(object));
  const Sequence* sequence = object.sequence();
  if (!object.IsString() && (sequence == nullptr || sequence->kind == SequenceKind::kView)) {
    return Value::Undefined(absl::StrCat("'", object.TypeName(), "' object cannot be sliced"));
  }
  for (const Value* bound : {&start, &stop, &step}) {
    if (!bound->IsNone() && !bound->IsIntegral()) {
      return Value::Undefined(absl::StrCat("slice indices must be integers or None, not ", bound->TypeName()));
    }
  }
  if (object.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForCharacters(object.AsString().size()));
    const auto characters = SplitCodePoints(object.AsString());
    ASSIGN_OR_RETURN(const SliceIndices at, ResolveSlice(start, stop, step, static_cast<int64_t>(characters.size())));
    std::string out;
    for (int64_t i = 0; i < at.count; ++i)
      out.append(std::string(characters[static_cast<size_t>(at.begin + i * at.step)]));
    return runtime.NewString(std::move(out));
  }
  ASSIGN_OR_RETURN(const SliceIndices at,
                   ResolveSlice(start, stop, step, static_cast<int64_t>(sequence->items.size())));
  // A slice of a range becomes a list here; only its printed form differs.
  Sequence out{sequence->kind == SequenceKind::kTuple ? SequenceKind::kTuple : SequenceKind::kList, {}, {}};
  for (int64_t i = 0; i < at.count; ++i)
    out.items.push_back(sequence->items[static_cast<size_t>(at.begin + i * at.step)]);
  return runtime.NewSequence(std::move(out));
}

}  // namespace switchyard::jinja
