// Lexer of templates.  Applies Jinja2's whitespace control: trim_blocks and lstrip_blocks are on, one trailing newline
// is dropped, `-` and `+` at tags work; removes comments and raw tags.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jinja {

enum class TokenKind {
  kData,           // text between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEof,
};

struct Token {
  TokenKind kind = TokenKind::kEof;
  std::string text;  // kString: unescaped
  int line = 0;
  int64_t integer = 0;
  double number = 0;

  bool IsName(absl::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool IsOperator(absl::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// The last token is kEof.  Errors: INVALID_ARGUMENT "… (line N)".
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

absl::Status SyntaxError(absl::string_view what, int line);
// The token for an error message.
std::string Describe(const Token& token);

// The lexer's pure parts, in lexer_text.cc: newlines, numbers and string escapes, as Jinja2 (that is, Python) reads
// them.

// "\r\n" and "\r" become "\n".
std::string NormalizeNewlines(absl::string_view text);

struct NumberText {
  size_t length = 0;   // in the source
  std::string digits;  // without underscores and base prefix
  int base = 10;
  bool is_float = false;
};

// The number that `text` begins with.  REQUIRES: text[0] is a digit.
NumberText ScanNumber(absl::string_view text, bool may_be_float);

// A string literal's content with its escapes resolved; an unknown escape stays as it is.
absl::StatusOr<std::string> Unescape(absl::string_view text);

}  // namespace switchyard::jinja
