#include "server/text/chat_template/interpreter/runtime.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"

namespace switchyard::jinja {

absl::Status Runtime::Steps(int64_t n) {
  // The clock is asked after this many calls, or after many steps: often enough to end soon, rarely enough to cost
  // little.
  constexpr int kCallsApart = 256;
  constexpr int64_t kStepsApart = 4096;
  steps_ += n;
  if (steps_ > limits_.max_steps) {
    return absl::ResourceExhaustedError(absl::StrCat("the template took more than ", limits_.max_steps, " steps"));
  }
  if (clock_.must_end == nullptr) return absl::OkStatus();
  if (++calls_since_asked_ < kCallsApart && steps_ - asked_at_step_ < kStepsApart) return absl::OkStatus();
  calls_since_asked_ = 0;
  asked_at_step_ = steps_;
  return clock_.must_end();
}

absl::Status Runtime::StepsForKey(const Value& key) {
  constexpr int64_t kStepsOfTuple = 1024;  // HashKey bounds a tuple's key at 64 KiB
  if (key.IsString()) return StepsForBytes(key.AsString().size());
  return Steps(key.IsTuple() ? kStepsOfTuple : 1);
}

absl::Status Runtime::Allocate(size_t bytes) {
  if (bytes > limits_.max_value_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a value of ", bytes, " bytes is larger than the limit of ", limits_.max_value_bytes));
  }
  allocated_bytes_ += bytes;
  if (allocated_bytes_ <= limits_.max_allocated_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template allocated more than ", limits_.max_allocated_bytes, " bytes"));
}

absl::Status Runtime::CheckValueDepth(int depth) const {
  if (depth <= limits_.max_value_depth) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("lists and dicts are nested more than ", limits_.max_value_depth, " deep"));
}

absl::StatusOr<Value> Runtime::NewString(std::string text) {
  RETURN_IF_ERROR(Allocate(text.size() + 48));
  RETURN_IF_ERROR(StepsForBytes(text.size()));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Runtime::NewSequence(Sequence sequence) {
  RETURN_IF_ERROR(Allocate(sequence.items.size() * sizeof(Value) + sizeof(Sequence)));
  RETURN_IF_ERROR(Steps(static_cast<int64_t>(sequence.items.size())));
  for (const Value& item : sequence.items) sequence.depth = std::max(sequence.depth, 1 + item.depth());
  RETURN_IF_ERROR(CheckValueDepth(sequence.depth));
  return Value::Of(std::make_shared<const Sequence>(std::move(sequence)));
}

absl::StatusOr<Value> Runtime::NewIterator(std::vector<Value> items) {
  RETURN_IF_ERROR(Allocate(items.size() * sizeof(Value)));
  RETURN_IF_ERROR(Steps(static_cast<int64_t>(items.size())));
  ASSIGN_OR_RETURN(Iterator * iterator, New<Iterator>(std::move(items)));
  return Value::Of(iterator);
}

absl::StatusOr<Value> Runtime::NewDict(Dict dict) {
  RETURN_IF_ERROR(Allocate(dict.size() * 128 + sizeof(Dict)));
  RETURN_IF_ERROR(Steps(static_cast<int64_t>(dict.size())));
  RETURN_IF_ERROR(CheckValueDepth(dict.depth()));
  return Value::Of(std::make_shared<const Dict>(std::move(dict)));
}

absl::Status Runtime::TooDeep() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("expressions, blocks and macro calls are nested more than ", limits_.max_depth, " deep"));
}

absl::Status RequireDefined(const Value& value) {
  return value.IsUndefined() ? Error(value.undefined_reason()) : absl::OkStatus();
}

absl::StatusOr<SequencePtr> Iterate(Runtime& runtime, const Value& value) {
  if (SequencePtr shared = value.shared_sequence()) return shared;
  Sequence out;
  if (value.IsString()) {
    const std::string& text = value.AsString();
    RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
    RETURN_IF_ERROR(runtime.Allocate(CountCodePoints(text) * (sizeof(Value) + 48)));
    for (absl::string_view c : SplitCodePoints(text))
      out.items.push_back(Value::String(std::string(c.data(), c.size())));
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, unused] : dict->items()) out.items.push_back(key);
  } else if (auto* iterator = dynamic_cast<Iterator*>(value.object())) {
    out.items = iterator->TakeRest();
  } else if (!value.IsUndefined()) {
    return Error("'", value.TypeName(), "' object is not iterable");
  }
  RETURN_IF_ERROR(runtime.Steps(static_cast<int64_t>(out.items.size())));
  return std::make_shared<const Sequence>(std::move(out));
}

absl::Status AppendTo(absl::StatusOr<Value> value, std::vector<Value>* items) {
  if (value.ok()) items->push_back(*std::move(value));
  return value.status();
}

absl::StatusOr<int64_t> Length(Runtime& runtime, const Value& value) {
  if (value.IsUndefined()) return 0;
  if (value.IsString()) {
    RETURN_IF_ERROR(runtime.StepsForBytes(value.AsString().size()));
    return static_cast<int64_t>(CountCodePoints(value.AsString()));
  }
  if (const Sequence* s = value.sequence()) return static_cast<int64_t>(s->items.size());
  if (const Dict* d = value.dict()) return static_cast<int64_t>(d->size());
  return Error("object of type '", value.TypeName(), "' has no len()");
}

absl::StatusOr<Bound> Bound::Bind(absl::string_view callee, const Args& args,
                                  std::initializer_list<absl::string_view> names, size_t num_required) {
  Bound bound;
  bound.callee_ = std::string(callee.data(), callee.size());
  for (absl::string_view name : names) bound.names_.emplace_back(name.data(), name.size());
  bound.values_.resize(names.size());
  if (args.positional.size() > names.size()) {
    return Error(callee, " takes at most ", names.size(), " arguments, got ", args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound.values_[i] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto it = std::find(bound.names_.begin(), bound.names_.end(), name);
    if (it == bound.names_.end()) return Error(callee, " got an unexpected keyword argument '", name, "'");
    std::optional<Value>& slot = bound.values_[static_cast<size_t>(it - bound.names_.begin())];
    if (slot.has_value()) return Error(callee, " got more than one value for argument '", name, "'");
    slot = value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (!bound.Has(i)) return Error(callee, " misses its argument '", bound.names_[i], "'");
  }
  return bound;
}

absl::StatusOr<int64_t> Bound::Int(size_t i, int64_t otherwise) const {
  if (!Has(i)) return otherwise;
  if (values_[i]->IsIntegral()) return values_[i]->AsInt();
  return Error(callee_, ": argument '", names_[i], "' must be int, not ", values_[i]->TypeName());
}

absl::StatusOr<absl::string_view> Bound::Text(size_t i, absl::string_view otherwise) const {
  if (!Has(i) || values_[i]->IsNone()) return otherwise;
  if (values_[i]->IsString()) return absl::string_view(values_[i]->AsString());
  return Error(callee_, ": argument '", names_[i], "' must be str, not ", values_[i]->TypeName());
}

}  // namespace switchyard::jinja
