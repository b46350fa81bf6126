#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/parser/parser.h"

namespace switchyard::jinja {
namespace {

template <class Node>
ast::Stmt MakeStmt(int line, Node node) {
  ast::Stmt stmt;
  stmt.line = line;
  stmt.node = std::move(node);
  return stmt;
}

}  // namespace

absl::StatusOr<Parser::Body> Parser::ParseBody(const std::vector<std::string>& ends) {
  SkipOperator(":");
  RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
  if (++nesting_ > max_nesting_) return Fail(absl::StrCat("blocks are nested more than ", max_nesting_, " deep"));
  absl::StatusOr<Body> body = ParseUntil(ends);
  --nesting_;
  return body;
}

absl::StatusOr<Parser::Body> Parser::ParseUntil(const std::vector<std::string>& ends) {
  Body body;
  while (true) {
    const int line = Current().line;
    switch (Current().kind) {
      case TokenKind::kData:
        body.block.push_back(MakeStmt(line, ast::Text{Take().text}));
        break;
      case TokenKind::kVariableBegin: {
        Take();
        ASSIGN_OR_RETURN(ast::ExprPtr value, ParseTuple(true, false));
        RETURN_IF_ERROR(Expect(TokenKind::kVariableEnd, "'}}'"));
        body.block.push_back(MakeStmt(line, ast::Output{std::move(value)}));
        break;
      }
      case TokenKind::kBlockBegin: {
        Take();
        if (Current().kind != TokenKind::kName) return Fail("expected the name of a tag");
        if (std::find(ends.begin(), ends.end(), Current().text) != ends.end()) {
          body.end = Take().text;
          return body;
        }
        ASSIGN_OR_RETURN(ast::Stmt stmt, ParseStatement());
        RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
        body.block.push_back(std::move(stmt));
        break;
      }
      default:
        if (ends.empty()) return body;
        return Fail(absl::StrCat("the template ends before '", absl::StrJoin(ends, "' or '"), "'"));
    }
  }
}

Parser::StmtOr Parser::ParseStatement() {
  const Token tag = Take();
  absl::StatusOr<ast::Stmt> stmt;
  if (tag.text == "if") {
    stmt = ParseIf();
  } else if (tag.text == "for") {
    stmt = ParseFor();
  } else if (tag.text == "set") {
    stmt = ParseSet();
  } else if (tag.text == "with") {
    stmt = ParseWith();
  } else if (tag.text == "macro") {
    stmt = ParseMacro();
  } else if (tag.text == "call") {
    stmt = ParseCallBlock();
  } else if (tag.text == "filter") {
    stmt = ParseFilterBlock();
  } else if (tag.text == "generation") {
    stmt = ParseGeneration();
  } else if (tag.text == "break") {
    stmt = ParseLoopControl(MakeStmt(tag.line, ast::Break{}));
  } else if (tag.text == "continue") {
    stmt = ParseLoopControl(MakeStmt(tag.line, ast::Continue{}));
  } else {
    stmt = FailUnknownTag(tag.text);
  }
  if (stmt.ok()) stmt->line = tag.line;
  return stmt;
}

Parser::StmtOr Parser::FailUnknownTag(const std::string& tag) {
  static constexpr absl::string_view kOtherTemplates[] = {"include", "import", "from", "extends", "block"};
  if (std::find(std::begin(kOtherTemplates), std::end(kOtherTemplates), tag) != std::end(kOtherTemplates)) {
    return Fail(absl::StrCat("'{% ", tag, " %}' is not possible: a chat template stands alone"));
  }
  return Fail(absl::StrCat("unknown tag '", tag, "'"));
}

Parser::StmtOr Parser::ParseLoopControl(ast::Stmt stmt) {
  if (loop_depth_ == 0) return Fail("'break' and 'continue' belong inside a for loop");
  return stmt;
}

Parser::StmtOr Parser::ParseIf() {
  ast::If node;
  while (true) {
    ASSIGN_OR_RETURN(ast::ExprPtr condition, ParseTuple(false, false));
    ASSIGN_OR_RETURN(Body body, ParseBody({"elif", "else", "endif"}));
    node.branches.emplace_back(std::move(condition), std::move(body.block));
    if (body.end == "elif") continue;
    if (body.end == "else") {
      ASSIGN_OR_RETURN(Body otherwise, ParseBody({"endif"}));
      node.otherwise = std::move(otherwise.block);
    }
    return MakeStmt(0, std::move(node));
  }
}

Parser::StmtOr Parser::ParseFor() {
  ast::For node;
  ASSIGN_OR_RETURN(node.target, ParseTarget(false));
  if (node.target.name == "loop") return Fail("the special variable 'loop' cannot be assigned in a for loop");
  if (!SkipName("in")) return Fail(absl::StrCat("expected 'in', got ", Describe(Current())));
  ASSIGN_OR_RETURN(node.iterable, ParseTuple(false, false));
  if (SkipName("if")) {
    ASSIGN_OR_RETURN(node.condition, ParseExpression());
  }
  node.recursive = SkipName("recursive");
  ++loop_depth_;
  ASSIGN_OR_RETURN(Body body, ParseBody({"endfor", "else"}));
  --loop_depth_;
  node.body = std::move(body.block);
  if (body.end == "else") {
    ASSIGN_OR_RETURN(Body otherwise, ParseBody({"endfor"}));
    node.otherwise = std::move(otherwise.block);
  }
  return MakeStmt(0, std::move(node));
}

Parser::StmtOr Parser::ParseSet() {
  ASSIGN_OR_RETURN(ast::Target target, ParseTarget(true));
  if (SkipOperator("=")) {
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseTuple(true, false));
    return MakeStmt(0, ast::Set{std::move(target), std::move(value)});
  }
  ast::SetBlock node{std::move(target), nullptr, {}};
  while (SkipOperator("|")) {
    ASSIGN_OR_RETURN(node.filter, ParseFilter(std::move(node.filter)));
  }
  ASSIGN_OR_RETURN(Body body, ParseBody({"endset"}));
  node.body = std::move(body.block);
  return MakeStmt(0, std::move(node));
}

Parser::StmtOr Parser::ParseWith() {
  ast::With node;
  while (Current().kind != TokenKind::kBlockEnd) {
    if (!node.bindings.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(ast::Target target, ParseSingleTarget(false));
    RETURN_IF_ERROR(ExpectOperator("="));
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
    node.bindings.emplace_back(std::move(target), std::move(value));
  }
  ASSIGN_OR_RETURN(Body body, ParseBody({"endwith"}));
  node.body = std::move(body.block);
  return MakeStmt(0, std::move(node));
}

absl::StatusOr<ast::Parameters> Parser::ParseParameters() {
  ast::Parameters out;
  RETURN_IF_ERROR(ExpectOperator("("));
  while (!Current().IsOperator(")")) {
    if (!out.names.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(std::string name, ExpectIdentifier());
    out.names.push_back(std::move(name));
    if (SkipOperator("=")) {
      ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
      out.defaults.push_back(std::move(value));
    } else if (!out.defaults.empty()) {
      return Fail("a parameter without a default follows one that has a default");
    }
  }
  Take();
  return out;
}

absl::Status Parser::ParseMacroBody(absl::string_view end, ast::MacroBody* macro) {
  macros_.push_back(macro);
  const int outer_loops = std::exchange(loop_depth_, 0);
  absl::StatusOr<Body> body = ParseBody({std::string(end)});
  loop_depth_ = outer_loops;
  macros_.pop_back();
  if (!body.ok()) return body.status();
  macro->body = std::move(body->block);
  return absl::OkStatus();
}

Parser::StmtOr Parser::ParseMacro() {
  ast::Macro node;
  ASSIGN_OR_RETURN(node.macro.name, ExpectIdentifier());
  ASSIGN_OR_RETURN(node.macro.parameters, ParseParameters());
  RETURN_IF_ERROR(ParseMacroBody("endmacro", &node.macro));
  return MakeStmt(0, std::move(node));
}

Parser::StmtOr Parser::ParseCallBlock() {
  ast::CallBlock node;
  node.caller.name = "caller";
  if (Current().IsOperator("(")) {
    ASSIGN_OR_RETURN(node.caller.parameters, ParseParameters());
  }
  ASSIGN_OR_RETURN(node.call, ParseExpression());
  if (!std::holds_alternative<ast::Call>(node.call->node)) return Fail("expected a call in '{% call %}'");
  RETURN_IF_ERROR(ParseMacroBody("endcall", &node.caller));
  return MakeStmt(0, std::move(node));
}

Parser::StmtOr Parser::ParseFilterBlock() {
  ast::FilterBlock node;
  do {
    ASSIGN_OR_RETURN(node.filter, ParseFilter(std::move(node.filter)));
  } while (SkipOperator("|"));
  ASSIGN_OR_RETURN(Body body, ParseBody({"endfilter"}));
  node.body = std::move(body.block);
  return MakeStmt(0, std::move(node));
}

Parser::StmtOr Parser::ParseGeneration() {
  ASSIGN_OR_RETURN(Body body, ParseBody({"endgeneration"}));
  return MakeStmt(0, ast::Generation{std::move(body.block)});
}

absl::StatusOr<ast::Target> Parser::ParseSingleTarget(bool with_namespace) {
  ast::Target target;
  if (SkipOperator("(")) {
    ASSIGN_OR_RETURN(target, ParseTarget(with_namespace));
    RETURN_IF_ERROR(ExpectOperator(")"));
    return target;
  }
  ASSIGN_OR_RETURN(target.name, ExpectIdentifier());
  static constexpr absl::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), target.name) != std::end(kConstants)) {
    return Fail(absl::StrCat("cannot assign to '", target.name, "'"));
  }
  if (with_namespace && SkipOperator(".")) {
    ASSIGN_OR_RETURN(target.attribute, ExpectIdentifier());
  }
  return target;
}

absl::StatusOr<ast::Target> Parser::ParseTarget(bool with_namespace) {
  if (++nesting_ > max_nesting_) return Fail(absl::StrCat("targets are nested more than ", max_nesting_, " deep"));
  ast::Target target;
  ASSIGN_OR_RETURN(target, ParseSingleTarget(with_namespace));
  if (Current().IsOperator(",")) {
    ast::Target tuple;
    tuple.is_tuple = true;
    tuple.items.push_back(std::move(target));
    while (SkipOperator(",")) {
      if (Current().IsName("in") || Current().IsOperator("=") || Current().IsOperator(")")) break;
      ASSIGN_OR_RETURN(ast::Target item, ParseSingleTarget(with_namespace));
      tuple.items.push_back(std::move(item));
    }
    target = std::move(tuple);
  }
  --nesting_;
  return target;
}

}  // namespace switchyard::jinja
