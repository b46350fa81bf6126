#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/parser/parser.h"

namespace switchyard::jinja {
namespace {

struct BinarySpelling {
  absl::string_view text;
  int level;
  ast::BinaryOp op;
};

// Precedence levels; 0 binds loosest.  `not` and the comparisons come after kLogicalLevels, `~` after kSum.
constexpr int kLogicalLevels = 2, kSum = 2, kProduct = 3, kPower = 4;
constexpr BinarySpelling kBinary[] = {
    {"or", 0, ast::BinaryOp::kOr},
    {"and", 1, ast::BinaryOp::kAnd},
    {"+", kSum, ast::BinaryOp::kAdd},
    {"-", kSum, ast::BinaryOp::kSub},
    {"*", kProduct, ast::BinaryOp::kMul},
    {"/", kProduct, ast::BinaryOp::kDiv},
    {"//", kProduct, ast::BinaryOp::kFloorDiv},
    {"%", kProduct, ast::BinaryOp::kMod},
    {"**", kPower, ast::BinaryOp::kPow},
};
constexpr std::pair<absl::string_view, ast::CompareOp> kCompare[] = {
    {"==", ast::CompareOp::kEq}, {"!=", ast::CompareOp::kNe}, {"<", ast::CompareOp::kLt},
    {"<=", ast::CompareOp::kLe}, {">", ast::CompareOp::kGt},  {">=", ast::CompareOp::kGe},
};

const BinarySpelling* FindBinary(const Token& token, int level) {
  for (const BinarySpelling& b : kBinary) {
    if (b.level != level) continue;
    if (level < kLogicalLevels ? token.IsName(b.text) : token.IsOperator(b.text)) return &b;
  }
  return nullptr;
}

}  // namespace

Parser::ExprOr Parser::Make(int line, int height, ast::ExprNode node) const {
  if (height >= max_nesting_) return FailTooDeep();
  return std::make_unique<ast::Expr>(ast::Expr{std::move(node), line, height + 1});
}

bool Parser::AtTupleEnd() const {
  const Token& t = Current();
  return t.kind == TokenKind::kVariableEnd || t.kind == TokenKind::kBlockEnd || t.IsOperator(")") ||
         t.IsName("recursive");
}

Parser::ExprOr Parser::ParseTuple(bool with_conditional, bool parenthesized) {
  const int line = Current().line;
  ast::ListLiteral tuple;
  int height = 0;
  bool has_comma = false;
  while (!AtTupleEnd()) {
    ASSIGN_OR_RETURN(ast::ExprPtr item, with_conditional ? ParseExpression() : ParseBinary(0));
    Raise(&height, item);
    tuple.items.push_back(std::move(item));
    if (!SkipOperator(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple.items.empty()) return std::move(tuple.items.front());
  if (!has_comma && !parenthesized) return FailExpected("an expression");
  tuple.is_tuple = true;
  return Make(line, height, std::move(tuple));
}

Parser::ExprOr Parser::ParseExpression() {
  if (++nesting_ > max_nesting_) return FailTooDeep();
  int line = Current().line;
  ASSIGN_OR_RETURN(ast::ExprPtr expr, ParseBinary(0));
  while (SkipName("if")) {
    ast::Conditional node;
    node.then = std::move(expr);
    ASSIGN_OR_RETURN(node.condition, ParseBinary(0));
    if (SkipName("else")) {
      ASSIGN_OR_RETURN(node.otherwise, ParseExpression());
    }
    const int height = std::max({Height(node.then), Height(node.condition), Height(node.otherwise)});
    ASSIGN_OR_RETURN(expr, Make(line, height, std::move(node)));
    line = Current().line;
  }
  --nesting_;
  return expr;
}

// Left-associative operators of this level over operands of the next.
Parser::ExprOr Parser::ParseBinary(int level) {
  const auto operand = [&]() -> ExprOr {
    if (level == kLogicalLevels - 1) return ParseNot();
    if (level == kSum) return ParseConcat();
    if (level == kPower) return ParseUnary(true);
    return ParseBinary(level + 1);
  };
  const int line = Current().line;
  ASSIGN_OR_RETURN(ast::ExprPtr left, operand());
  while (const BinarySpelling* spelling = FindBinary(Current(), level)) {
    Take();
    ASSIGN_OR_RETURN(ast::ExprPtr right, operand());
    const int height = std::max(left->height, right->height);
    ASSIGN_OR_RETURN(left, Make(line, height, ast::Binary{spelling->op, std::move(left), std::move(right)}));
  }
  return left;
}

Parser::ExprOr Parser::ParseNot() {
  const int line = Current().line;
  if (!SkipName("not")) return ParseCompare();
  if (++nesting_ > max_nesting_) return Fail("too many 'not' within each other");
  ASSIGN_OR_RETURN(ast::ExprPtr operand, ParseNot());
  --nesting_;
  const int height = operand->height;
  return Make(line, height, ast::Unary{ast::UnaryOp::kNot, std::move(operand)});
}

Parser::ExprOr Parser::ParseCompare() {
  const int line = Current().line;
  ast::Compare node;
  ASSIGN_OR_RETURN(node.first, ParseBinary(kSum));
  int height = node.first->height;
  while (true) {
    const auto* known = std::find_if(std::begin(kCompare), std::end(kCompare),
                                     [&](const auto& c) { return Current().IsOperator(c.first); });
    ast::CompareOp op;
    if (known != std::end(kCompare)) {
      Take();
      op = known->second;
    } else if (SkipName("in")) {
      op = ast::CompareOp::kIn;
    } else if (Current().IsName("not") && Look().IsName("in")) {
      Take();
      Take();
      op = ast::CompareOp::kNotIn;
    } else {
      break;
    }
    ASSIGN_OR_RETURN(ast::ExprPtr operand, ParseBinary(kSum));
    Raise(&height, operand);
    node.rest.emplace_back(op, std::move(operand));
  }
  if (node.rest.empty()) return std::move(node.first);
  return Make(line, height, std::move(node));
}

Parser::ExprOr Parser::ParseConcat() {
  const int line = Current().line;
  ast::Concat node;
  int height = 0;
  do {
    ASSIGN_OR_RETURN(ast::ExprPtr part, ParseBinary(kProduct));
    Raise(&height, part);
    node.parts.push_back(std::move(part));
  } while (SkipOperator("~"));
  if (node.parts.size() == 1) return std::move(node.parts.front());
  return Make(line, height, std::move(node));
}

Parser::ExprOr Parser::ParseUnary(bool with_filter) {
  if (++nesting_ > max_nesting_) return FailTooDeep();
  const int line = Current().line;
  const bool minus = Current().IsOperator("-"), plus = Current().IsOperator("+");
  ast::ExprPtr expr;
  if (minus || plus) {
    Take();
    ASSIGN_OR_RETURN(ast::ExprPtr operand, ParseUnary(false));
    const int height = operand->height;
    const auto op = minus ? ast::UnaryOp::kNegative : ast::UnaryOp::kPositive;
    ASSIGN_OR_RETURN(expr, Make(line, height, ast::Unary{op, std::move(operand)}));
  } else {
    ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (with_filter) {
    ASSIGN_OR_RETURN(expr, ParseFiltersAndTests(std::move(expr)));
  }
  --nesting_;
  return expr;
}

}  // namespace switchyard::jinja
