// Python's operators on Values: arithmetic, comparison, membership, subscripts and attributes.
//
// They depend only on their arguments and the Runtime's budget.  A Python exception is INVALID_ARGUMENT here; integers
// are 64 bits and overflow is an error (Python's grow without end).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/interpreter/runtime.h"
#include "server/text/chat_template/parser/ast.h"

namespace switchyard::jinja {

// a == b.  The only errors are the render's limits.
absl::StatusOr<bool> Equal(Runtime& runtime, const Value& a, const Value& b);
// Returns <0, 0 or >0; nullopt if one of them is NaN.  Error: types without an order.
absl::StatusOr<std::optional<int>> Order(Runtime& runtime, const Value& a, const Value& b);
absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item);
absl::StatusOr<bool> Compare(Runtime& runtime, ast::CompareOp op, const Value& a, const Value& b);

// Returns the indexes of `keys` in ascending or, if `reverse`, descending order; equal keys keep their order (Python's
// sorted()).
absl::StatusOr<std::vector<size_t>> SortedPlaces(Runtime& runtime, const std::vector<Value>& keys, bool reverse);

// REQUIRES: op is not kAnd or kOr, which do not evaluate both sides.
absl::StatusOr<Value> Arithmetic(Runtime& runtime, ast::BinaryOp op, const Value& a, const Value& b);
// -value or +value.
absl::StatusOr<Value> Signed(const Value& value, bool negative);

// obj.name: the method if there is one, else the item, else an undefined value.
absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& object, absl::string_view name);
// obj[index]: the item if there is one, else the attribute.
absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& object, const Value& index);
// obj[start:stop:step]; an absent bound is None.  Undefined if the types do not fit, as in Jinja's sandbox.
absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                               const Value& step);

// The indexes that Python's slice.indices(length) yields.
struct SliceIndices {
  int64_t begin = 0, step = 1, count = 0;
};
absl::StatusOr<SliceIndices> ResolveSlice(const Value& start, const Value& stop, const Value& step, int64_t length);

// A callable made of a function; `name` for messages.
class Function : public Object {
 public:
  using Body = std::function<absl::StatusOr<Value>(Runtime&, const Args&)>;
  Function(absl::string_view name, Body body) : name_(name), body_(std::move(body)) {}
  std::string TypeName() const override { return "function"; }
  std::string Repr() const override { return "<function " + name_ + ">"; }
  bool IsCallable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime& runtime, Args& args) override { return body_(runtime, args); }

 private:
  std::string name_;
  Body body_;
};
absl::StatusOr<Value> NewFunction(Runtime& runtime, absl::string_view name, Function::Body body);

}  // namespace switchyard::jinja
