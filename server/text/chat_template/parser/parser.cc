#include "server/text/chat_template/parser/parser.h"

#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jinja {

absl::StatusOr<ast::Block> ParseTemplate(absl::string_view source, const text::ChatTemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the template has ", source.size(), " bytes, the limit is ", limits.max_source_bytes));
  }
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens), limits.max_nesting).ParseUntil({});
}

Token Parser::Take() {
  Token token = Current();
  if (next_ + 1 < tokens_.size()) ++next_;  // the end is never passed
  return token;
}

bool Parser::SkipName(absl::string_view name) {
  if (!Current().IsName(name)) return false;
  Take();
  return true;
}

bool Parser::SkipOperator(absl::string_view op) {
  if (!Current().IsOperator(op)) return false;
  Take();
  return true;
}

absl::Status Parser::ExpectOperator(absl::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : FailExpected(absl::StrCat("'", op, "'"));
}

absl::Status Parser::Expect(TokenKind kind, absl::string_view what) {
  if (Current().kind != kind) return FailExpected(what);
  Take();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Parser::ExpectIdentifier() {
  if (Current().kind != TokenKind::kName) return FailExpected("a name");
  return Take().text;
}

absl::StatusOr<ast::Block> Parser::ParseBody(const std::vector<std::string>& ends) {
  SkipOperator(":");
  RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
  if (++nesting_ > max_nesting_) return Fail(absl::StrCat("blocks are nested more than ", max_nesting_, " deep"));
  ASSIGN_OR_RETURN(ast::Block block, ParseUntil(ends));
  --nesting_;
  return block;
}

absl::StatusOr<ast::Block> Parser::ParseUntil(const std::vector<std::string>& ends) {
  ast::Block block;
  while (true) {
    const int line = Current().line;
    switch (Current().kind) {
      case TokenKind::kData:
        block.push_back({ast::Text{Take().text}, line});
        break;
      case TokenKind::kVariableBegin: {
        Take();
        ASSIGN_OR_RETURN(ast::ExprPtr value, ParseTuple(true, false));
        RETURN_IF_ERROR(Expect(TokenKind::kVariableEnd, "'}}'"));
        block.push_back({ast::Output{std::move(value)}, line});
        break;
      }
      case TokenKind::kBlockBegin: {
        Take();
        if (Current().kind != TokenKind::kName) return Fail("expected the name of a tag");
        if (std::find(ends.begin(), ends.end(), Current().text) != ends.end()) {
          end_tag_ = Take().text;
          return block;
        }
        ASSIGN_OR_RETURN(ast::Stmt stmt, ParseStatement());
        RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
        block.push_back(std::move(stmt));
        break;
      }
      default:
        if (ends.empty()) return block;
        return Fail(absl::StrCat("the template ends before '", absl::StrJoin(ends, "' or '"), "'"));
    }
  }
}

absl::StatusOr<ast::Stmt> Parser::ParseStatement() {
  static constexpr std::pair<absl::string_view, NodeOr (Parser::*)()> kTags[] = {
      {"if", &Parser::ParseIf},
      {"for", &Parser::ParseFor},
      {"set", &Parser::ParseSet},
      {"with", &Parser::ParseWith},
      {"macro", &Parser::ParseMacro},
      {"call", &Parser::ParseCallBlock},
      {"filter", &Parser::ParseFilterBlock},
      {"generation", &Parser::ParseGeneration},
      {"break", &Parser::ParseLoopControl<ast::Break>},
      {"continue", &Parser::ParseLoopControl<ast::Continue>},
  };
  const Token tag = Take();
  for (const auto& [name, parse] : kTags) {
    if (tag.text != name) continue;
    ASSIGN_OR_RETURN(ast::StmtNode node, (this->*parse)());
    return ast::Stmt{std::move(node), tag.line};
  }
  for (const absl::string_view name : {"include", "import", "from", "extends", "block"}) {
    if (tag.text != name) continue;
    return Fail(absl::StrCat("'{% ", name, " %}' is not possible: a chat template stands alone"));
  }
  return Fail(absl::StrCat("unknown tag '", tag.text, "'"));
}

template <class Node>
Parser::NodeOr Parser::ParseLoopControl() {
  if (loop_depth_ == 0) return Fail("'break' and 'continue' belong inside a for loop");
  return Node{};
}

Parser::NodeOr Parser::ParseIf() {
  ast::If node;
  do {
    ASSIGN_OR_RETURN(ast::ExprPtr condition, ParseTuple(false, false));
    ASSIGN_OR_RETURN(ast::Block body, ParseBody({"elif", "else", "endif"}));
    node.branches.emplace_back(std::move(condition), std::move(body));
  } while (end_tag_ == "elif");
  if (end_tag_ == "else") {
    ASSIGN_OR_RETURN(node.otherwise, ParseBody({"endif"}));
  }
  return node;
}

Parser::NodeOr Parser::ParseFor() {
  ast::For node;
  ASSIGN_OR_RETURN(node.target, ParseTarget(false));
  if (node.target.name == "loop") return Fail("the special variable 'loop' cannot be assigned in a for loop");
  if (!SkipName("in")) return FailExpected("'in'");
  ASSIGN_OR_RETURN(node.iterable, ParseTuple(false, false));
  if (SkipName("if")) {
    ASSIGN_OR_RETURN(node.condition, ParseExpression());
  }
  node.recursive = SkipName("recursive");
  ++loop_depth_;
  ASSIGN_OR_RETURN(node.body, ParseBody({"endfor", "else"}));
  --loop_depth_;
  if (end_tag_ == "else") {
    ASSIGN_OR_RETURN(node.otherwise, ParseBody({"endfor"}));
  }
  return node;
}

Parser::NodeOr Parser::ParseSet() {
  ASSIGN_OR_RETURN(ast::Target target, ParseTarget(true));
  if (SkipOperator("=")) {
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseTuple(true, false));
    return ast::Set{std::move(target), std::move(value)};
  }
  ast::CapturingBlock node{std::move(target), nullptr, {}};
  while (SkipOperator("|")) {
    ASSIGN_OR_RETURN(node.filter, ParseFilter(std::move(node.filter)));
  }
  ASSIGN_OR_RETURN(node.body, ParseBody({"endset"}));
  return node;
}

Parser::NodeOr Parser::ParseWith() {
  ast::With node;
  while (Current().kind != TokenKind::kBlockEnd) {
    if (!node.bindings.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(ast::Target target, ParseSingleTarget(false));
    RETURN_IF_ERROR(ExpectOperator("="));
    ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
    node.bindings.emplace_back(std::move(target), std::move(value));
  }
  ASSIGN_OR_RETURN(node.body, ParseBody({"endwith"}));
  return node;
}

absl::Status Parser::ParseParameters(ast::Macro* macro) {
  RETURN_IF_ERROR(ExpectOperator("("));
  while (!Current().IsOperator(")")) {
    if (!macro->parameters.empty()) RETURN_IF_ERROR(ExpectOperator(","));
    ASSIGN_OR_RETURN(std::string name, ExpectIdentifier());
    macro->parameters.push_back(std::move(name));
    if (SkipOperator("=")) {
      ASSIGN_OR_RETURN(ast::ExprPtr value, ParseExpression());
      macro->defaults.push_back(std::move(value));
    } else if (!macro->defaults.empty()) {
      return Fail("a parameter without a default follows one that has a default");
    }
  }
  Take();
  return absl::OkStatus();
}

absl::Status Parser::ParseMacroBody(const std::string& end, ast::Macro* macro) {
  macros_.push_back(macro);
  const int outer_loops = std::exchange(loop_depth_, 0);
  ASSIGN_OR_RETURN(macro->body, ParseBody({end}));
  loop_depth_ = outer_loops;
  macros_.pop_back();
  return absl::OkStatus();
}

Parser::NodeOr Parser::ParseMacro() {
  ast::Macro node;
  ASSIGN_OR_RETURN(node.name, ExpectIdentifier());
  RETURN_IF_ERROR(ParseParameters(&node));
  RETURN_IF_ERROR(ParseMacroBody("endmacro", &node));
  return node;
}

Parser::NodeOr Parser::ParseCallBlock() {
  ast::CallBlock node;
  node.caller.name = "caller";
  if (Current().IsOperator("(")) RETURN_IF_ERROR(ParseParameters(&node.caller));
  ASSIGN_OR_RETURN(node.call, ParseExpression());
  if (!std::holds_alternative<ast::Call>(node.call->node)) return Fail("expected a call in '{% call %}'");
  RETURN_IF_ERROR(ParseMacroBody("endcall", &node.caller));
  return node;
}

Parser::NodeOr Parser::ParseFilterBlock() {
  ast::CapturingBlock node;
  do {
    ASSIGN_OR_RETURN(node.filter, ParseFilter(std::move(node.filter)));
  } while (SkipOperator("|"));
  ASSIGN_OR_RETURN(node.body, ParseBody({"endfilter"}));
  return node;
}

Parser::NodeOr Parser::ParseGeneration() {
  ast::Generation node;
  ASSIGN_OR_RETURN(node.body, ParseBody({"endgeneration"}));
  return node;
}

absl::StatusOr<ast::Target> Parser::ParseSingleTarget(bool with_namespace) {
  ast::Target target;
  if (SkipOperator("(")) {
    ASSIGN_OR_RETURN(target, ParseTarget(with_namespace));
    RETURN_IF_ERROR(ExpectOperator(")"));
    return target;
  }
  ASSIGN_OR_RETURN(target.name, ExpectIdentifier());
  for (const absl::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == constant) return Fail(absl::StrCat("cannot assign to '", constant, "'"));
  }
  if (with_namespace && SkipOperator(".")) {
    ASSIGN_OR_RETURN(target.attribute, ExpectIdentifier());
  }
  return target;
}

absl::StatusOr<ast::Target> Parser::ParseTarget(bool with_namespace) {
  if (++nesting_ > max_nesting_) return Fail(absl::StrCat("targets are nested more than ", max_nesting_, " deep"));
  ASSIGN_OR_RETURN(ast::Target target, ParseSingleTarget(with_namespace));
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
