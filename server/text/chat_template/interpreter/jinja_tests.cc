// Jinja's tests, the names after `is`.
#include <functional>

#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/filters/text_ops.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

// A test that depends only on the value.
template <auto kAsk>
absl::StatusOr<bool> Ask(Runtime&, const Value& input, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("test", args, {}).status());
  return std::invoke(kAsk, input);
}

bool IsDefined(const Value& v) { return !v.IsUndefined(); }
bool IsTrue(const Value& v) { return v.IsBool() && v.AsBool(); }
bool IsFalse(const Value& v) { return v.IsBool() && !v.AsBool(); }
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

template <ast::CompareOp kOp>
absl::StatusOr<bool> CompareTest(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("test", args, {"other"}, 1));
  return Compare(runtime, kOp, input, bound.Get(0));
}

absl::StatusOr<bool> RemainderIs(Runtime& runtime, const Value& input, const Value& divisor, int64_t expected) {
  ASSIGN_OR_RETURN(const Value remainder, Arithmetic(runtime, ast::BinaryOp::kMod, input, divisor));
  return Equal(runtime, remainder, Value::Int(expected));
}

template <int64_t kRemainder>
absl::StatusOr<bool> IsOddOrEven(Runtime& runtime, const Value& input, const Args&) {
  return RemainderIs(runtime, input, Value::Int(2), kRemainder);
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

// Whether the input is the name of a filter, or of a test.
template <auto kFind>
absl::StatusOr<bool> IsNameOf(Runtime& runtime, const Value& input, const Args&) {
  if (!input.IsString()) return false;
  RETURN_IF_ERROR(runtime.StepsForBytes(input.AsString().size()));
  return kFind(input.AsString()) != nullptr;
}

constexpr Named<Test> kTests[] = {
    {"!=", CompareTest<ast::CompareOp::kNe>},
    {"<", CompareTest<ast::CompareOp::kLt>},
    {"<=", CompareTest<ast::CompareOp::kLe>},
    {"==", CompareTest<ast::CompareOp::kEq>},
    {">", CompareTest<ast::CompareOp::kGt>},
    {">=", CompareTest<ast::CompareOp::kGe>},
    {"boolean", Ask<&Value::IsBool>},
    {"callable", Ask<IsCallable>},
    {"defined", Ask<IsDefined>},
    {"divisibleby", IsDivisibleBy},
    {"eq", CompareTest<ast::CompareOp::kEq>},
    {"equalto", CompareTest<ast::CompareOp::kEq>},
    {"escaped", Ask<IsEscaped>},
    {"even", IsOddOrEven<0>},
    {"false", Ask<IsFalse>},
    {"filter", IsNameOf<FindFilter>},
    {"float", Ask<&Value::IsFloat>},
    {"ge", CompareTest<ast::CompareOp::kGe>},
    {"greaterthan", CompareTest<ast::CompareOp::kGt>},
    {"gt", CompareTest<ast::CompareOp::kGt>},
    {"in", CompareTest<ast::CompareOp::kIn>},
    {"integer", Ask<&Value::IsInt>},
    {"iterable", Ask<IsIterable>},
    {"le", CompareTest<ast::CompareOp::kLe>},
    {"lessthan", CompareTest<ast::CompareOp::kLt>},
    {"lower", IsCase<false>},
    {"lt", CompareTest<ast::CompareOp::kLt>},
    {"mapping", Ask<IsMapping>},
    {"ne", CompareTest<ast::CompareOp::kNe>},
    {"none", Ask<&Value::IsNone>},
    {"number", Ask<&Value::IsNumber>},
    {"odd", IsOddOrEven<1>},
    {"sameas", IsSameAs},
    {"sequence", Ask<IsSequenceTest>},
    {"string", Ask<&Value::IsString>},
    {"test", IsNameOf<FindTest>},
    {"true", Ask<IsTrue>},
    {"undefined", Ask<&Value::IsUndefined>},
    {"upper", IsCase<true>},
};

}  // namespace

Test FindTest(absl::string_view name) { return FindNamed(kTests, name); }

}  // namespace switchyard::jinja
