#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/format.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

constexpr absl::string_view kSpelling[] = {"+", "-", "*", "/", "//", "%", "**"};

absl::Status Overflow() { return Error("an integer does not fit 64 bits"); }

absl::StatusOr<Value> PowerOfInts(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return Error("0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  if (base == 0 || base == 1 || base == -1) exponent = exponent == 0 ? 0 : 2 - exponent % 2;  // same parity, no loop
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return Overflow();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> DivideInts(ast::BinaryOp op, int64_t a, int64_t b);

absl::StatusOr<Value> IntArithmetic(ast::BinaryOp op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflows = false;
  switch (op) {
    case ast::BinaryOp::kAdd:
      overflows = __builtin_add_overflow(a, b, &out);
      break;
    case ast::BinaryOp::kSub:
      overflows = __builtin_sub_overflow(a, b, &out);
      break;
    case ast::BinaryOp::kMul:
      overflows = __builtin_mul_overflow(a, b, &out);
      break;
    case ast::BinaryOp::kPow:
      return PowerOfInts(a, b);
    default:
      return DivideInts(op, a, b);
  }
  if (overflows) return Overflow();
  return Value::Int(out);
}

absl::StatusOr<Value> DivideInts(ast::BinaryOp op, int64_t a, int64_t b) {
  if (b == 0) return Error("division by zero");
  if (op == ast::BinaryOp::kDiv) return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // INT64_MIN / -1 traps
    if (op == ast::BinaryOp::kMod) return Value::Int(0);
    return IntArithmetic(ast::BinaryOp::kSub, 0, a);
  }
  const bool rounds_down = a % b != 0 && (a < 0) != (b < 0);
  if (op == ast::BinaryOp::kFloorDiv) return Value::Int(a / b - (rounds_down ? 1 : 0));
  return Value::Int(a % b + (rounds_down ? b : 0));
}

absl::StatusOr<Value> FloatArithmetic(ast::BinaryOp op, double a, double b) {
  switch (op) {
    case ast::BinaryOp::kAdd:
      return Value::Float(a + b);
    case ast::BinaryOp::kSub:
      return Value::Float(a - b);
    case ast::BinaryOp::kMul:
      return Value::Float(a * b);
    case ast::BinaryOp::kPow:
      if (a == 0 && b < 0) return Error("0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) return Error("a negative number to a fractional power is not real");
      return Value::Float(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return Error("float division by zero");
  if (op == ast::BinaryOp::kDiv) return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (op == ast::BinaryOp::kMod) return Value::Float(remainder == 0 ? std::copysign(0.0, b) : remainder);
  const double floor = std::floor(quotient);
  return Value::Float(quotient - floor > 0.5 ? floor + 1 : floor);
}

// Returns the largest size_t if the product does not fit; no limit allows that.
size_t Product(size_t bytes, int64_t times) {
  size_t product = 0;
  return __builtin_mul_overflow(bytes, static_cast<size_t>(times), &product) ? SIZE_MAX : product;
}

absl::StatusOr<Value> RepeatString(Runtime& runtime, const std::string& text, int64_t times) {
  if (times <= 0 || text.empty()) return Value::String("");
  const size_t bytes = Product(text.size(), times);
  RETURN_IF_ERROR(runtime.Allocate(bytes));
  RETURN_IF_ERROR(runtime.StepsForBytes(bytes));
  std::string out;
  out.reserve(bytes);
  for (int64_t i = 0; i < times; ++i) out += text;
  return Value::String(std::move(out));
}

absl::StatusOr<Value> RepeatSequence(Runtime& runtime, const Sequence& sequence, int64_t times) {
  Sequence out{sequence.kind, {}, {}};
  if (times > 0 && !sequence.items.empty()) {
    RETURN_IF_ERROR(runtime.Allocate(Product(sequence.items.size() * sizeof(Value), times)));
    for (int64_t i = 0; i < times; ++i) out.items.insert(out.items.end(), sequence.items.begin(), sequence.items.end());
  }
  return runtime.NewSequence(std::move(out));
}

bool IsListOrTuple(const Value& v) { return v.IsList() || v.IsTuple(); }

// Operators on text and lists; nullopt for other operands.
absl::StatusOr<std::optional<Value>> SequenceArithmetic(Runtime& runtime, ast::BinaryOp op, const Value& a,
                                                        const Value& b) {
  if (op == ast::BinaryOp::kAdd && a.IsString() && b.IsString())
    return runtime.NewString(absl::StrCat(a.AsString(), b.AsString()));
  if (op == ast::BinaryOp::kAdd && IsListOrTuple(a) && IsListOrTuple(b) && a.sequence()->kind == b.sequence()->kind) {
    Sequence out{a.sequence()->kind, a.sequence()->items, {}};
    out.items.insert(out.items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return runtime.NewSequence(std::move(out));
  }
  if (op == ast::BinaryOp::kMul && b.IsIntegral()) {
    if (a.IsString()) return RepeatString(runtime, a.AsString(), b.AsInt());
    if (IsListOrTuple(a)) return RepeatSequence(runtime, *a.sequence(), b.AsInt());
  }
  if (op == ast::BinaryOp::kMul && a.IsIntegral() && (b.IsString() || IsListOrTuple(b))) {
    return SequenceArithmetic(runtime, op, b, a);
  }
  if (op == ast::BinaryOp::kMod && a.IsString()) {
    ASSIGN_OR_RETURN(std::string text, FormatPercent(runtime, a.AsString(), b));
    return runtime.NewString(std::move(text));
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Runtime& runtime, ast::BinaryOp op, const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral()) return IntArithmetic(op, a.AsInt(), b.AsInt());
  if (a.IsNumber() && b.IsNumber()) return FloatArithmetic(op, a.AsDouble(), b.AsDouble());
  if (!(op == ast::BinaryOp::kMod && a.IsString())) RETURN_IF_ERROR(RequireDefined(b));
  RETURN_IF_ERROR(RequireDefined(a));
  ASSIGN_OR_RETURN(const std::optional<Value> value, SequenceArithmetic(runtime, op, a, b));
  if (value.has_value()) return *value;
  return Error("unsupported operand types for ", kSpelling[static_cast<size_t>(op)], ": '", a.TypeName(), "' and '",
               b.TypeName(), "'");
}

absl::StatusOr<Value> Signed(const Value& value, bool negative) {
  RETURN_IF_ERROR(RequireDefined(value));
  if (value.IsFloat()) return Value::Float(negative ? -value.AsDouble() : value.AsDouble());
  if (!value.IsIntegral()) {
    return Error("bad operand type for unary ", negative ? "-" : "+", ": '", value.TypeName(), "'");
  }
  return negative ? IntArithmetic(ast::BinaryOp::kSub, 0, value.AsInt()) : Value::Int(value.AsInt());
}

}  // namespace switchyard::jinja
