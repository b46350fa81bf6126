// Operands: constants, names, lists and dicts, and the subscripts, calls, filters and tests that may follow them.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/parser/parser.h"

namespace switchyard::jinja {

void Parser::NoteSpecialName(absl::string_view name) {
  for (ast::Macro* macro : macros_) {
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
    macro->uses_caller |= name == "caller";
  }
}

Parser::ExprOr Parser::ParsePrimary() {
  const int line = Current().line;
  switch (Current().kind) {
    case TokenKind::kName: {
      const Token t = Take();
      if (t.text == "true" || t.text == "True") return Make(line, 0, ast::Constant{Value::Bool(true)});
      if (t.text == "false" || t.text == "False") return Make(line, 0, ast::Constant{Value::Bool(false)});
      if (t.text == "none" || t.text == "None") return Make(line, 0, ast::Constant{Value::None()});
      NoteSpecialName(t.text);
      return Make(line, 0, ast::Name{t.text});
    }
    case TokenKind::kString: {
      std::string text;
      while (Current().kind == TokenKind::kString) text += Take().text;
      return Make(line, 0, ast::Constant{Value::String(std::move(text))});
    }
    case TokenKind::kInteger:
      return Make(line, 0, ast::Constant{Value::Int(Take().integer)});
    case TokenKind::kFloat:
      return Make(line, 0, ast::Constant{Value::Float(Take().number)});
    default:
      break;
  }
  if (SkipOperator("(")) {
    ASSIGN_OR_RETURN(ast::ExprPtr tuple, ParseTuple(true, true));
    RETURN_IF_ERROR(ExpectOperator(")"));
    return tuple;
  }
  if (Current().IsOperator("[")) return ParseList();
  if (Current().IsOperator("{")) return ParseDict();
  return Fail(absl::StrCat("unexpected ", Describe(Current())));
}

Parser::ExprOr Parser::ParseList() {
  const int line = Take().line;
  ast::ListLiteral node;
  int height = 0;
  while (!Current().IsOperator("]")) {
    if (!node.items.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (Current().IsOperator("]")) break;
    ASSIGN_OR_RETURN(ast::ExprPtr item, ParseExpression());
    Raise(&height, item);
    node.items.push_back(std::move(item));
  }
  Take();
  return Make(line, height, std::move(node));
}

Parser::ExprOr Parser::ParseDict() {
  const int line = Take().line;
  ast::DictLiteral node;
  int height = 0;
  while (!Current().IsOperator("}")) {
    if (!node.items.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    if (Current().IsOperator("}")) break;
    ASSIGN_OR_RETURN(ast::ExprPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
    height = std::max({height, key->height, value->height});
    node.items.emplace_back(std::move(key), std::move(value));
  }
  Take();
  return Make(line, height, std::move(node));
}

Parser::ExprOr Parser::ParsePostfix(ast::ExprPtr expr) {
  while (true) {
    if (Current().IsOperator(".") || Current().IsOperator("[")) {
      ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (Current().IsOperator("(")) {
      ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Parser::ExprOr Parser::ParseFiltersAndTests(ast::ExprPtr expr) {
  while (true) {
    if (SkipOperator("|")) {
      ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
    } else if (SkipName("is")) {
      ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (Current().IsOperator("(")) {
      ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Parser::ExprOr Parser::ParseSubscript(ast::ExprPtr object) {
  const Token open = Take();
  const int height = object->height;
  if (open.text == "[") return ParseSliceOrIndex(std::move(object), open.line);
  if (Current().kind == TokenKind::kName) {
    return Make(open.line, height, ast::Attribute{std::move(object), Take().text});
  }
  if (Current().kind != TokenKind::kInteger) return Fail("expected a name or a number after '.'");
  ASSIGN_OR_RETURN(ast::ExprPtr index, Make(open.line, 0, ast::Constant{Value::Int(Take().integer)}));
  return Make(open.line, height, ast::Subscript{std::move(object), std::move(index)});
}

Parser::ExprOr Parser::ParseSliceOrIndex(ast::ExprPtr object, int line) {
  ast::ExprPtr bounds[3];
  int num_colons = 0;
  int height = object->height;
  while (!Current().IsOperator("]")) {
    if (num_colons < 2 && SkipOperator(":")) {
      ++num_colons;
      continue;
    }
    if (bounds[num_colons] != nullptr) return FailExpected("']'");
    ASSIGN_OR_RETURN(bounds[num_colons], ParseExpression());
    Raise(&height, bounds[num_colons]);
  }
  Take();
  if (num_colons > 0) {
    return Make(line, height,
                ast::Slice{std::move(object), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])});
  }
  if (bounds[0] == nullptr) return Fail("expected a subscript between '[' and ']'");
  return Make(line, height, ast::Subscript{std::move(object), std::move(bounds[0])});
}

absl::Status Parser::ParseArgument(ast::Arguments* arguments, int* height) {
  const auto invalid = [&] { return Fail("invalid order of arguments in a call"); };
  if (SkipOperator("*")) {
    if (arguments->star != nullptr || arguments->double_star != nullptr) return invalid();
    ASSIGN_OR_RETURN(arguments->star, ParseExpression());
    Raise(height, arguments->star);
  } else if (SkipOperator("**")) {
    if (arguments->double_star != nullptr) return invalid();
    ASSIGN_OR_RETURN(arguments->double_star, ParseExpression());
    Raise(height, arguments->double_star);
  } else if (Current().kind == TokenKind::kName && Look().IsOperator("=")) {
    if (arguments->double_star != nullptr) return invalid();
    std::string name = Take().text;
    Take();
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
    Raise(height, value);
    arguments->named.emplace_back(std::move(name), std::move(value));
  } else {
    if (arguments->star != nullptr || arguments->double_star != nullptr || !arguments->named.empty()) return invalid();
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
    Raise(height, value);
    arguments->positional.push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseArguments(ast::Arguments* arguments, int* height) {
  RETURN_IF_ERROR(ExpectOperator("("));
  bool first = true;
  while (!Current().IsOperator(")")) {
    if (!first) RETURN_IF_ERROR(ExpectOperator(","));
    if (Current().IsOperator(")")) break;
    RETURN_IF_ERROR(ParseArgument(arguments, height));
    first = false;
  }
  Take();
  return absl::OkStatus();
}

Parser::ExprOr Parser::ParseCall(ast::ExprPtr callee) {
  const int line = Current().line;
  int height = callee->height;
  ast::Call node{std::move(callee), {}};
  RETURN_IF_ERROR(ParseArguments(&node.arguments, &height));
  return Make(line, height, std::move(node));
}

Parser::ExprOr Parser::ParseFilter(ast::ExprPtr input) {
  const int line = Current().line;
  int height = Height(input);
  ast::Filter node{std::move(input), "", {}};
  ASSIGN_OR_RETURN(node.name, ExpectIdentifier());
  if (Current().IsOperator("(")) RETURN_IF_ERROR(ParseArguments(&node.arguments, &height));
  return Make(line, height, std::move(node));
}

// After "is": [not] name, with its arguments in parentheses or one bare operand.
Parser::ExprOr Parser::ParseTest(ast::ExprPtr input) {
  const int line = Current().line;
  const bool negated = SkipName("not");
  int height = input->height;
  ast::Test node{std::move(input), "", {}};
  ASSIGN_OR_RETURN(node.name, ExpectIdentifier());
  const Token& t = Current();
  const bool is_literal = t.kind == TokenKind::kString || t.kind == TokenKind::kInteger ||
                          t.kind == TokenKind::kFloat || t.IsOperator("[") || t.IsOperator("{");
  const bool is_name = t.kind == TokenKind::kName && !t.IsName("else") && !t.IsName("or") && !t.IsName("and");
  if (t.IsOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(&node.arguments, &height));
  } else if (is_literal || is_name) {
    if (t.IsName("is")) return Fail("tests cannot be chained with 'is'");
    ASSIGN_OR_RETURN(ast::ExprPtr operand, ParsePrimary());
    ASSIGN_OR_RETURN(operand, ParsePostfix(std::move(operand)));
    Raise(&height, operand);
    node.arguments.positional.push_back(std::move(operand));
  }
  ASSIGN_OR_RETURN(ast::ExprPtr test, Make(line, height, std::move(node)));
  if (!negated) return test;
  height = test->height;
  return Make(line, height, ast::Unary{ast::UnaryOp::kNot, std::move(test)});
}

}  // namespace switchyard::jinja
