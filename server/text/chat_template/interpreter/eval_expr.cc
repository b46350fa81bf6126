#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/interpreter/interpreter.h"
#include "server/text/chat_template/interpreter/methods.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {

absl::StatusOr<Value> Interpreter::Eval(const ast::Expr& expr) {
  const Runtime::Depth depth(&runtime_);
  if (!depth.ok()) return runtime_.TooDeep();
  RETURN_IF_ERROR(runtime_.Steps());
  runtime_.line = expr.line;
  return std::visit([this](const auto& node) { return EvalNode(node); }, expr.node);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Name& node) {
  // Charges for the name, which may be as long as the template.
  RETURN_IF_ERROR(runtime_.Steps(static_cast<int64_t>(node.name.size() / 64)));
  int64_t scopes = 0;
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (++scopes % 8 == 0) RETURN_IF_ERROR(runtime_.Steps());
    if (const auto it = scope->names.find(node.name); it != scope->names.end()) return it->second;
  }
  return Value::Undefined(absl::StrCat("'", node.name, "' is undefined"));
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::ListLiteral& node) {
  Sequence out{node.is_tuple ? SequenceKind::kTuple : SequenceKind::kList, {}, {}};
  for (const ast::ExprPtr& item : node.items) RETURN_IF_ERROR(AppendTo(Eval(*item), &out.items));
  return runtime_.NewSequence(std::move(out));
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::DictLiteral& node) {
  Dict out;
  for (const auto& [key_expr, value_expr] : node.items) {
    ASSIGN_OR_RETURN(const Value key, Eval(*key_expr));
    ASSIGN_OR_RETURN(Value value, Eval(*value_expr));
    RETURN_IF_ERROR(runtime_.StepsForKey(key));
    if (!out.Set(key, std::move(value))) return Error("unhashable type: '", key.TypeName(), "'");
  }
  return runtime_.NewDict(std::move(out));
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Unary& node) {
  ASSIGN_OR_RETURN(const Value value, Eval(*node.operand));
  if (node.op == ast::UnaryOp::kNot) return Value::Bool(!value.Truth());
  return Signed(value, node.op == ast::UnaryOp::kNegative);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Binary& node) {
  ASSIGN_OR_RETURN(Value left, Eval(*node.left));
  if (node.op == ast::BinaryOp::kAnd) return left.Truth() ? Eval(*node.right) : left;
  if (node.op == ast::BinaryOp::kOr) return left.Truth() ? left : Eval(*node.right);
  ASSIGN_OR_RETURN(const Value right, Eval(*node.right));
  return Arithmetic(runtime_, node.op, left, right);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Concat& node) {
  std::string out;
  for (const ast::ExprPtr& part : node.parts) {
    ASSIGN_OR_RETURN(const Value value, Eval(*part));
    ASSIGN_OR_RETURN(const std::string text, Str(runtime_, value));
    out += text;
    if (out.size() > runtime_.limits().max_value_bytes) RETURN_IF_ERROR(runtime_.Allocate(out.size()));
  }
  return runtime_.NewString(std::move(out));
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Compare& node) {
  ASSIGN_OR_RETURN(Value left, Eval(*node.first));
  for (const auto& [op, operand] : node.rest) {
    ASSIGN_OR_RETURN(Value right, Eval(*operand));
    ASSIGN_OR_RETURN(const bool holds, Compare(runtime_, op, left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Conditional& node) {
  ASSIGN_OR_RETURN(const Value condition, Eval(*node.condition));
  if (condition.Truth()) return Eval(*node.then);
  if (node.otherwise != nullptr) return Eval(*node.otherwise);
  return Value::Undefined("an inline if was false and has no else");
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Attribute& node) {
  ASSIGN_OR_RETURN(const Value object, Eval(*node.object));
  return GetAttribute(runtime_, object, node.name);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Subscript& node) {
  ASSIGN_OR_RETURN(const Value object, Eval(*node.object));
  ASSIGN_OR_RETURN(const Value index, Eval(*node.index));
  return GetItem(runtime_, object, index);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Slice& node) {
  ASSIGN_OR_RETURN(const Value object, Eval(*node.object));
  Value bounds[3];
  const ast::ExprPtr* exprs[3] = {&node.start, &node.stop, &node.step};
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(bounds[i], *exprs[i] == nullptr ? ValueOr(Value::None()) : Eval(**exprs[i]));
  }
  return GetSlice(runtime_, object, bounds[0], bounds[1], bounds[2]);
}

absl::Status Interpreter::AddStarArguments(const ast::Arguments& arguments, Args* args) {
  if (arguments.star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Eval(*arguments.star));
    ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime_, star));
    RETURN_IF_ERROR(runtime_.Steps(static_cast<int64_t>(items->items.size())));
    args->positional.insert(args->positional.end(), items->items.begin(), items->items.end());
  }
  if (arguments.double_star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Eval(*arguments.double_star));
    if (star.dict() == nullptr) return Error("the argument after ** must be a mapping, not ", star.TypeName());
    for (const auto& [key, value] : star.dict()->items()) {
      if (!key.IsString()) return Error("keywords must be strings");
      RETURN_IF_ERROR(runtime_.StepsForKey(key));
      args->named.emplace_back(key.AsString(), value);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Args> Interpreter::EvalArguments(const ast::Arguments& arguments) {
  Args args;
  for (const ast::ExprPtr& expr : arguments.positional) RETURN_IF_ERROR(AppendTo(Eval(*expr), &args.positional));
  for (const auto& [name, expr] : arguments.named) {
    ASSIGN_OR_RETURN(Value value, Eval(*expr));
    args.named.emplace_back(name, std::move(value));
  }
  RETURN_IF_ERROR(AddStarArguments(arguments, &args));
  return args;
}

absl::StatusOr<Value> Interpreter::EvalCall(const ast::Call& node, const Value* caller) {
  const int line = runtime_.line;
  Value callee;
  // A method that is called at once needs no callable object.
  const auto* attribute = std::get_if<ast::Attribute>(&node.callee->node);
  if (attribute != nullptr) {
    ASSIGN_OR_RETURN(const Value object, Eval(*attribute->object));
    if (object.object() == nullptr && FindMethod(object, attribute->name) == MethodKind::kCallable) {
      ASSIGN_OR_RETURN(const Args args, EvalArguments(node.arguments));
      runtime_.line = line;
      return CallMethod(runtime_, object, attribute->name, args);
    }
    ASSIGN_OR_RETURN(callee, GetAttribute(runtime_, object, attribute->name));
  } else {
    ASSIGN_OR_RETURN(callee, Eval(*node.callee));
  }
  ASSIGN_OR_RETURN(Args args, EvalArguments(node.arguments));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  runtime_.line = line;
  RETURN_IF_ERROR(RequireDefined(callee));
  if (callee.object() == nullptr) return Error("'", callee.TypeName(), "' object is not callable");
  return callee.object()->Call(runtime_, args);
}

absl::StatusOr<Value> Interpreter::EvalFilter(const ast::Filter& node, const Value* block) {
  Value input;
  if (node.input == nullptr) {
    input = *block;
  } else if (block != nullptr) {
    // In a filter block's chain every input is the filter before.
    ASSIGN_OR_RETURN(input, EvalFilter(std::get<ast::Filter>(node.input->node), block));
  } else {
    ASSIGN_OR_RETURN(input, Eval(*node.input));
  }
  const int line = runtime_.line;
  ASSIGN_OR_RETURN(const Args args, EvalArguments(node.arguments));
  runtime_.line = line;
  return ApplyFilter(runtime_, node.name, input, args);
}

absl::StatusOr<Value> Interpreter::EvalNode(const ast::Test& node) {
  const int line = runtime_.line;
  ASSIGN_OR_RETURN(const Value input, Eval(*node.input));
  ASSIGN_OR_RETURN(const Args args, EvalArguments(node.arguments));
  runtime_.line = line;
  ASSIGN_OR_RETURN(const bool passes, ApplyTest(runtime_, node.name, input, args));
  return Value::Bool(passes);
}

}  // namespace switchyard::jinja
