// Jinja's tests: what stands after `is`.
#include "absl/container/flat_hash_map.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/filters/text_ops.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

using ast::BinaryOp;
using ast::CompareOp;

// A test that is a question about the value alone.
template <bool (*kAsk)(const Value&)>
absl::StatusOr<bool> Ask(Runtime&, const Value& input, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("test", args, {}).status());
  return kAsk(input);
}

bool IsDefined(const Value& v) { return !v.IsUndefined(); }
bool IsUndefined(const Value& v) { return v.IsUndefined(); }
bool IsNone(const Value& v) { return v.IsNone(); }
bool IsBoolean(const Value& v) { return v.IsBool(); }
bool IsTrue(const Value& v) { return v.IsBool() && v.AsBool(); }
bool IsFalse(const Value& v) { return v.IsBool() && !v.AsBool(); }
bool IsInteger(const Value& v) { return v.IsInt(); }
bool IsFloat(const Value& v) { return v.IsFloat(); }
bool IsNumber(const Value& v) { return v.IsNumber(); }
bool IsString(const Value& v) { return v.IsString(); }
bool IsMapping(const Value& v) { return v.dict() != nullptr; }
bool IsCallable(const Value& v) { return v.object() != nullptr && v.object()->IsCallable(); }
bool IsSequenceTest(const Value& v) {
  return v.IsUndefined() || v.IsString() || v.dict() != nullptr ||
         (v.sequence() != nullptr && v.sequence()->kind != SequenceKind::kView);
}
bool IsIterable(const Value& v) {
  return v.IsUndefined() || v.IsString() || v.dict() != nullptr || v.sequence() != nullptr ||
         dynamic_cast<Iterator*>(v.object()) != nullptr;
}
bool IsEscaped(const Value&) { return false; }

template <jinja::ast::CompareOp kOp>
absl::StatusOr<bool> CompareTest(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("test", args, {"other"}, 1));
  return Compare(runtime, kOp, input, bound.Get(0));
}

absl::StatusOr<bool> RemainderIs(Runtime& runtime, const Value& input, const Value& divisor, int64_t expected) {
  ASSIGN_OR_RETURN(const Value remainder, Arithmetic(runtime, jinja::ast::BinaryOp::kMod, input, divisor));
  return Equal(runtime, remainder, Value::Int(expected));
}

absl::StatusOr<bool> IsOdd(Runtime& runtime, const Value& input, const Args&) {
  return RemainderIs(runtime, input, Value::Int(2), 1);
}
absl::StatusOr<bool> IsEven(Runtime& runtime, const Value& input, const Args&) {
  return RemainderIs(runtime, input, Value::Int(2), 0);
}
absl::StatusOr<bool> IsDivisibleBy(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("divisibleby", args, {"num"}, 1));
  return RemainderIs(runtime, input, bound.Get(0), 0);
}

template <bool kUpper>
absl::StatusOr<bool> IsCase(Runtime& runtime, const Value& input, const Args&) {
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  return HasCase(text, kUpper);
}

absl::StatusOr<bool> IsSameAs(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("sameas", args, {"other"}, 1));
  if (input.IsString()) RETURN_IF_ERROR(runtime.StepsForBytes(input.AsString().size()));
  return input.SameAs(bound.Get(0));
}

absl::StatusOr<bool> IsFilter(Runtime& runtime, const Value& input, const Args&) {
  if (input.IsString()) RETURN_IF_ERROR(runtime.StepsForBytes(input.AsString().size()));
  return input.IsString() && FindFilter(input.AsString()) != nullptr;
}
absl::StatusOr<bool> IsTest(Runtime& runtime, const Value& input, const Args&) {
  if (input.IsString()) RETURN_IF_ERROR(runtime.StepsForBytes(input.AsString().size()));
  return input.IsString() && FindTest(input.AsString()) != nullptr;
}

}  // namespace

Test FindTest(absl::string_view name) {
  static const auto* const kTable = new absl::flat_hash_map<std::string, Test>{
      {"!=", CompareTest<jinja::ast::CompareOp::kNe>},
      {"<", CompareTest<jinja::ast::CompareOp::kLt>},
      {"<=", CompareTest<jinja::ast::CompareOp::kLe>},
      {"==", CompareTest<jinja::ast::CompareOp::kEq>},
      {">", CompareTest<jinja::ast::CompareOp::kGt>},
      {">=", CompareTest<jinja::ast::CompareOp::kGe>},
      {"boolean", Ask<IsBoolean>},
      {"callable", Ask<IsCallable>},
      {"defined", Ask<IsDefined>},
      {"divisibleby", IsDivisibleBy},
      {"eq", CompareTest<jinja::ast::CompareOp::kEq>},
      {"equalto", CompareTest<jinja::ast::CompareOp::kEq>},
      {"escaped", Ask<IsEscaped>},
      {"even", IsEven},
      {"false", Ask<IsFalse>},
      {"filter", IsFilter},
      {"float", Ask<IsFloat>},
      {"ge", CompareTest<jinja::ast::CompareOp::kGe>},
      {"greaterthan", CompareTest<jinja::ast::CompareOp::kGt>},
      {"gt", CompareTest<jinja::ast::CompareOp::kGt>},
      {"in", CompareTest<jinja::ast::CompareOp::kIn>},
      {"integer", Ask<IsInteger>},
      {"iterable", Ask<IsIterable>},
      {"le", CompareTest<jinja::ast::CompareOp::kLe>},
      {"lessthan", CompareTest<jinja::ast::CompareOp::kLt>},
      {"lower", IsCase<false>},
      {"lt", CompareTest<jinja::ast::CompareOp::kLt>},
      {"mapping", Ask<IsMapping>},
      {"ne", CompareTest<jinja::ast::CompareOp::kNe>},
      {"none", Ask<IsNone>},
      {"number", Ask<IsNumber>},
      {"odd", IsOdd},
      {"sameas", IsSameAs},
      {"sequence", Ask<IsSequenceTest>},
      {"string", Ask<IsString>},
      {"test", IsTest},
      {"true", Ask<IsTrue>},
      {"undefined", Ask<IsUndefined>},
      {"upper", IsCase<true>},
  };
  const auto it = kTable->find(name);
  return it == kTable->end() ? nullptr : it->second;
}

}  // namespace switchyard::jinja
