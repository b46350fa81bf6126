// Values of templates, which behave like Python's.
//
// A Value is 24 bytes and copies cheaply: strings, lists and dicts are shared and immutable (Jinja's sandbox forbids
// their mutating methods), so they form no cycles and need no collector.  Namespaces, loops, macros and iterators have
// state or could form a cycle: each is an Object owned by the Runtime, and a Value that points to it is valid only
// during the render.  Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jinja {

class Value;
class Runtime;
class Dict;
class Object;
struct Args;

// dict.items(), keys() and values() return a kView: it has a length and cannot be indexed.
enum class SequenceKind { kList, kTuple, kRange, kView };

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  std::string label;  // kRange: its printed form; kView: Python's name of its type
  int depth = 1;      // containers within each other, this one included
};

using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;

class Value {
 public:
  Value() = default;  // undefined without a reason

  // Using the value is an error with this `reason`, e.g. "'tools' is undefined".
  static Value Undefined(std::string reason);
  static Value None() { return Value(NoneType{}); }
  static Value Bool(bool b) { return Value(b); }
  static Value Int(int64_t i) { return Value(i); }
  static Value Float(double d) { return Value(d); }
  // Not charged to any budget: for short text.  See Runtime::NewString.
  static Value String(std::string s);
  static Value Of(SequencePtr s) { return Value(std::move(s)); }
  static Value Of(DictPtr d) { return Value(std::move(d)); }
  static Value Of(Object* o) { return Value(o); }

  bool IsUndefined() const { return Is<UndefinedType>(); }
  bool IsNone() const { return Is<NoneType>(); }
  bool IsBool() const { return Is<bool>(); }
  bool IsInt() const { return Is<int64_t>(); }
  bool IsFloat() const { return Is<double>(); }
  bool IsIntegral() const { return IsBool() || IsInt(); }  // Python's int, which includes bool
  bool IsNumber() const { return IsIntegral() || IsFloat(); }
  bool IsString() const { return Is<StringType>(); }

  // REQUIRES: the value is of that kind.
  bool AsBool() const { return std::get<bool>(rep_); }
  int64_t AsInt() const { return IsBool() ? (AsBool() ? 1 : 0) : std::get<int64_t>(rep_); }
  double AsDouble() const { return IsFloat() ? std::get<double>(rep_) : static_cast<double>(AsInt()); }
  const std::string& AsString() const { return *std::get<StringType>(rep_); }

  // nullptr when the value is of another kind.
  const Sequence* sequence() const { return Get<SequencePtr>(); }
  SequencePtr shared_sequence() const { return Is<SequencePtr>() ? std::get<SequencePtr>(rep_) : nullptr; }
  const Dict* dict() const { return Get<DictPtr>(); }
  Object* object() const { return Is<Object*>() ? std::get<Object*>(rep_) : nullptr; }
  bool IsSequence(SequenceKind kind) const { return sequence() != nullptr && sequence()->kind == kind; }
  bool IsList() const { return IsSequence(SequenceKind::kList); }
  bool IsTuple() const { return IsSequence(SequenceKind::kTuple); }

  // REQUIRES: IsUndefined().
  std::string undefined_reason() const;
  // Python's name of the type: "str", "dict", ….
  std::string TypeName() const;
  // Python's `is`: the same object, or equal constants.
  bool SameAs(const Value& other) const;
  // Containers within each other; 0 for scalars and Objects.
  int depth() const;
  // Python's truth value.
  bool Truth() const;

 private:
  struct NoneType {};
  struct UndefinedType {
    std::shared_ptr<const std::string> reason;
  };
  using StringType = std::shared_ptr<const std::string>;

  template <class T>
  explicit Value(T v) : rep_(std::move(v)) {}
  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(rep_);
  }
  template <class Ptr>
  const typename Ptr::element_type* Get() const {
    return Is<Ptr>() ? std::get<Ptr>(rep_).get() : nullptr;
  }

  std::variant<UndefinedType, NoneType, bool, int64_t, double, StringType, SequencePtr, DictPtr, Object*> rep_;
};

// Insertion-ordered, with Python's notion of equal keys (1 == 1.0 == True).
class Dict {
 public:
  // Returns false if the key is not hashable (a list or a dict).  An existing key keeps its place.
  [[nodiscard]] bool Set(const Value& key, Value value);
  const Value* Find(const Value& key) const;  // nullptr: absent, or not hashable
  const Value* Find(absl::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int depth() const { return depth_; }

 private:
  std::vector<std::pair<Value, Value>> items_;
  absl::flat_hash_map<std::string, size_t> index_;  // HashKey → place in items_
  int depth_ = 1;
};

// Returns a text that is equal for equal values; nullopt if the value is not hashable.
std::optional<std::string> HashKey(const Value& value);

// A value with identity or state.  Owned by the Runtime; never owns another Object.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string TypeName() const = 0;
  virtual std::string Repr() const { return "<" + TypeName() + " object>"; }
  virtual bool IsCallable() const { return false; }
  virtual bool Truth() const { return true; }
  // nullopt: no such attribute.
  virtual absl::StatusOr<std::optional<Value>> GetAttribute(Runtime& runtime, absl::string_view name);
  virtual absl::StatusOr<Value> Call(Runtime& runtime, Args& args);
};

// A generator: yields each item once.
class Iterator : public Object {
 public:
  explicit Iterator(std::vector<Value> items) : items_(std::move(items)) {}
  std::string TypeName() const override { return "generator"; }
  const Value* Next() { return next_ < items_.size() ? &items_[next_++] : nullptr; }
  std::vector<Value> TakeRest();

 private:
  std::vector<Value> items_;
  size_t next_ = 0;
};

class Namespace : public Object {
 public:
  explicit Namespace(Dict attributes) : attributes_(std::move(attributes)) {}
  std::string TypeName() const override { return "Namespace"; }
  absl::StatusOr<std::optional<Value>> GetAttribute(Runtime& runtime, absl::string_view name) override;
  [[nodiscard]] bool Set(absl::string_view name, Value value);

 private:
  Dict attributes_;
};

}  // namespace switchyard::jinja
