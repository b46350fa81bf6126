// One render's budget, heap and clock, and the arguments of calls.
//
// Each render has one Runtime.  Every operation that makes a value or looks at many of them charges it, so that no
// template exceeds its ChatTemplateLimits.  Errors are RESOURCE_EXHAUSTED for limits, else INVALID_ARGUMENT; RenderChat
// adds the line.  Thread-compatible.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/text/chat_template/chat_template.h"
#include "server/text/chat_template/interpreter/value.h"

namespace switchyard::jinja {

class Runtime {
 public:
  // Borrows the clock.
  Runtime(const text::ChatTemplateLimits& limits, const text::ChatTemplateClock& clock)
      : limits_(limits), clock_(clock) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const text::ChatTemplateLimits& limits() const { return limits_; }
  absl::Time now() const { return clock_.now; }
  absl::TimeZone zone() const { return clock_.zone; }

  // Charge for work, if possible before it is done: nodes, items, bytes of text that is searched or copied, and bytes
  // that are read character by character, which takes several times as long.  At intervals they call the clock's
  // must_end.
  absl::Status Steps(int64_t n = 1);
  absl::Status StepsForBytes(size_t bytes) { return Steps(static_cast<int64_t>(bytes / 64) + 1); }
  absl::Status StepsForCharacters(size_t bytes) { return Steps(static_cast<int64_t>(bytes / 16) + 1); }
  // Charges for hashing a value, which copies its text.
  absl::Status StepsForKey(const Value& key);
  // Charges for a value of this size before it is made: checks the limits of one value and of the whole render.
  absl::Status Allocate(size_t bytes);

  absl::StatusOr<Value> NewString(std::string text);
  absl::StatusOr<Value> NewString(absl::string_view text) { return NewString(std::string(text.data(), text.size())); }
  absl::StatusOr<Value> NewSequence(Sequence sequence);
  absl::StatusOr<Value> NewList(std::vector<Value> items) {
    return NewSequence({SequenceKind::kList, std::move(items), {}});
  }
  absl::StatusOr<Value> NewTuple(std::vector<Value> items) {
    return NewSequence({SequenceKind::kTuple, std::move(items), {}});
  }
  absl::StatusOr<Value> NewIterator(std::vector<Value> items);
  absl::StatusOr<Value> NewDict(Dict dict);

  // An Object that lives as long as the render.
  template <class T, class... Ctor>
  absl::StatusOr<T*> New(Ctor&&... args) {
    if (absl::Status s = Allocate(sizeof(T) + 64); !s.ok()) return s;
    auto owned = std::make_unique<T>(std::forward<Ctor>(args)...);
    T* object = owned.get();
    objects_.push_back(std::move(owned));
    return object;
  }

  // Counts one level of recursion while it lives; not ok() beyond the limit.
  class Depth {
   public:
    explicit Depth(Runtime* runtime) : runtime_(runtime) { ++runtime_->depth_; }
    ~Depth() { --runtime_->depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    bool ok() const { return runtime_->depth_ <= runtime_->limits_.max_depth; }

   private:
    Runtime* runtime_;
  };
  absl::Status TooDeep() const;

  int line = 0;  // line of the template that is being evaluated

 private:
  absl::Status CheckValueDepth(int depth) const;

  const text::ChatTemplateLimits limits_;
  const text::ChatTemplateClock& clock_;
  int64_t steps_ = 0;
  int64_t asked_at_step_ = 0;  // steps_ at the last call of must_end
  int calls_since_asked_ = 0;  // calls of Steps since then
  size_t allocated_bytes_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Returns INVALID_ARGUMENT with the joined parts.
template <class... Parts>
absl::Status Error(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
// Returns the error for using an undefined value; OK for any other value.
absl::Status RequireDefined(const Value& value);

// Returns the items that Python's iter() would give; consumes an Iterator.
absl::StatusOr<SequencePtr> Iterate(Runtime& runtime, const Value& value);
// Python's len().
absl::StatusOr<int64_t> Length(Runtime& runtime, const Value& value);

// A call's arguments, evaluated.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Appends the value, or returns its error.
absl::Status AppendTo(absl::StatusOr<Value> value, std::vector<Value>* items);

// A filter or a method, called on the value `self`.
using Method = absl::StatusOr<Value> (*)(Runtime& runtime, const Value& self, const Args& args);

// A row of a table of functions by name.
template <class Function>
using Named = std::pair<absl::string_view, Function>;

// Returns nullptr if the table has no such name.
template <class Function, size_t kCount>
Function FindNamed(const Named<Function> (&table)[kCount], absl::string_view name) {
  for (const auto& [known, function] : table) {
    if (known == name) return function;
  }
  return nullptr;
}

// A call's arguments, bound to parameters as in Python.
class Bound {
 public:
  // `names` lists the parameters in order, the first `num_required` of them without a default.
  static absl::StatusOr<Bound> Bind(absl::string_view callee, const Args& args,
                                    std::initializer_list<absl::string_view> names, size_t num_required = 0);

  // Get the i-th parameter; one that was not passed yields the default given here.
  bool Has(size_t i) const { return values_[i].has_value(); }
  Value Get(size_t i, Value otherwise = Value::None()) const { return Has(i) ? *values_[i] : otherwise; }
  bool Flag(size_t i, bool otherwise) const { return Has(i) ? values_[i]->Truth() : otherwise; }
  absl::StatusOr<int64_t> Int(size_t i, int64_t otherwise) const;
  // None counts as not passed.  Returns a view, valid as long as this object and `otherwise`, since a copy would have
  // to be charged.
  absl::StatusOr<absl::string_view> Text(size_t i, absl::string_view otherwise) const;

 private:
  std::string callee_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace switchyard::jinja
