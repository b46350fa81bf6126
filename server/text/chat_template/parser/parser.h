// Parser of templates: makes a tree of the text, by Jinja2's grammar.
//
// Thread-compatible; for one use.  Nesting beyond limits.max_nesting, unknown tags, and tags that chat templates do not
// need (include, import, extends, block) are errors that name their line.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/text/chat_template/chat_template.h"
#include "server/text/chat_template/parser/ast.h"
#include "server/text/chat_template/parser/lexer.h"

namespace switchyard::jinja {

// INVALID_ARGUMENT "… (line N)".
absl::StatusOr<ast::Block> ParseTemplate(absl::string_view source, const text::ChatTemplateLimits& limits);

// Recursive-descent parser: tokens and statements in parser.cc, operators in parser_expr.cc, operands in
// parser_operand.cc.  An error ends the parse, so counters are not restored after errors.
class Parser {
 public:
  Parser(std::vector<Token> tokens, int max_nesting) : tokens_(std::move(tokens)), max_nesting_(max_nesting) {}

  // Reads up to one of the end tags (none: up to the end of the template) and sets end_tag_.
  absl::StatusOr<ast::Block> ParseUntil(const std::vector<std::string>& ends);

 private:
  using ExprOr = absl::StatusOr<ast::ExprPtr>;
  using NodeOr = absl::StatusOr<ast::StmtNode>;

  // Tokens.
  const Token& Current() const { return tokens_[next_]; }
  const Token& Look() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool SkipName(absl::string_view name);
  bool SkipOperator(absl::string_view op);
  absl::Status ExpectOperator(absl::string_view op);
  absl::Status Expect(TokenKind kind, absl::string_view what);
  absl::StatusOr<std::string> ExpectIdentifier();
  absl::Status Fail(absl::string_view what) const { return SyntaxError(what, Current().line); }
  absl::Status FailExpected(absl::string_view what) const {
    return Fail(absl::StrCat("expected ", what, ", got ", Describe(Current())));
  }

  // Statements.  ParseUntil, beginning at a tag's "%}".
  absl::StatusOr<ast::Block> ParseBody(const std::vector<std::string>& ends);
  absl::StatusOr<ast::Stmt> ParseStatement();
  NodeOr ParseIf();
  NodeOr ParseFor();
  NodeOr ParseSet();
  NodeOr ParseWith();
  NodeOr ParseMacro();
  NodeOr ParseCallBlock();
  NodeOr ParseFilterBlock();
  NodeOr ParseGeneration();
  template <class Node>
  NodeOr ParseLoopControl();
  absl::Status ParseParameters(ast::Macro* macro);
  absl::Status ParseMacroBody(const std::string& end, ast::Macro* macro);
  absl::StatusOr<ast::Target> ParseTarget(bool with_namespace);
  absl::StatusOr<ast::Target> ParseSingleTarget(bool with_namespace);

  // Expressions, from the loosest binding to the tightest.
  ExprOr ParseTuple(bool with_conditional, bool parenthesized);
  ExprOr ParseExpression();
  ExprOr ParseBinary(int level);
  ExprOr ParseNot();
  ExprOr ParseCompare();
  ExprOr ParseConcat();
  ExprOr ParseUnary(bool with_filter);
  ExprOr ParsePrimary();
  ExprOr ParseList();
  ExprOr ParseDict();
  ExprOr ParsePostfix(ast::ExprPtr expr);
  ExprOr ParseFiltersAndTests(ast::ExprPtr expr);
  ExprOr ParseSubscript(ast::ExprPtr object);
  ExprOr ParseSliceOrIndex(ast::ExprPtr object, int line);
  ExprOr ParseCall(ast::ExprPtr callee);
  ExprOr ParseFilter(ast::ExprPtr input);
  ExprOr ParseTest(ast::ExprPtr input);
  absl::Status ParseArguments(ast::Arguments* arguments, int* height);
  absl::Status ParseArgument(ast::Arguments* arguments, int* height);
  bool AtTupleEnd() const;
  void NoteSpecialName(absl::string_view name);

  // Makes an expression node whose highest child has `height`.
  ExprOr Make(int line, int height, ast::ExprNode node) const;
  absl::Status FailTooDeep() const {
    return Fail(absl::StrCat("the expression is nested more than ", max_nesting_, " deep"));
  }
  static int Height(const ast::ExprPtr& expr) { return expr == nullptr ? 0 : expr->height; }
  static void Raise(int* height, const ast::ExprPtr& expr) { *height = std::max(*height, Height(expr)); }

  const std::vector<Token> tokens_;
  const int max_nesting_;
  size_t next_ = 0;
  std::string end_tag_;              // name of the tag that ended the last block
  int nesting_ = 0;                  // parse functions within each other
  int loop_depth_ = 0;               // for blocks around the current tag, within its macro
  std::vector<ast::Macro*> macros_;  // being parsed, outermost first
};

}  // namespace switchyard::jinja
