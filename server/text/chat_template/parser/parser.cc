#include "server/text/chat_template/parser/parser.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jinja {

absl::StatusOr<ast::Block> ParseTemplate(absl::string_view source, const text::ChatTemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the template has ", source.size(), " bytes, the limit is ", limits.max_source_bytes));
  }
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens), limits).ParseAll();
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
  if (SkipOperator(op)) return absl::OkStatus();
  return Fail(absl::StrCat("expected '", op, "', got ", Describe(Current())));
}

absl::Status Parser::Expect(TokenKind kind, absl::string_view what) {
  if (Current().kind != kind) return Fail(absl::StrCat("expected ", what, ", got ", Describe(Current())));
  Take();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Parser::ExpectIdentifier() {
  if (Current().kind != TokenKind::kName) return Fail(absl::StrCat("expected a name, got ", Describe(Current())));
  return Take().text;
}

absl::StatusOr<ast::Block> Parser::ParseAll() {
  ASSIGN_OR_RETURN(Body body, ParseUntil({}));
  return std::move(body.block);
}

}  // namespace switchyard::jinja
