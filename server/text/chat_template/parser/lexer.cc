#include "server/text/chat_template/parser/lexer.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"

namespace switchyard::jinja {
namespace {

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < source_.size()) RETURN_IF_ERROR(NextTag());
    Emit(TokenKind::kEof, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view Rest(size_t pos) const { return absl::string_view(source_).substr(std::min(pos, source_.size())); }
  bool At(size_t pos, absl::string_view text) const { return Rest(pos).substr(0, text.size()) == text; }
  char Sign(size_t pos) const { return At(pos, "-") ? '-' : At(pos, "+") ? '+' : ' '; }
  size_t SkipSpace(size_t pos) const { return source_.size() - Strip(Rest(pos), Side::kLeft).size(); }

  Token& Emit(TokenKind kind, absl::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
    return tokens_.back();
  }

  void MoveTo(size_t pos) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(pos), '\n'));
    pos_ = pos;
  }

  // Emits the text in [pos_, end) before a tag, stripped according to the tag's sign and lstrip_blocks.
  void EmitData(size_t end, char sign, bool is_variable) {
    absl::string_view text = Rest(pos_).substr(0, end - pos_);
    if (sign == '-') {
      text = Strip(text, Side::kRight);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == kNone ? 0 : newline + 1;
      const bool at_line_start = line_start > 0 || pos_ == 0 || source_[pos_ - 1] == '\n';
      if (at_line_start && Strip(text.substr(line_start), Side::kBoth).empty()) text = text.substr(0, line_start);
    }
    if (!text.empty()) Emit(TokenKind::kData, text);
    MoveTo(end);
  }

  // The end of a tag at `pos` ("%}", "-%}", "+%}" with the whitespace it swallows), or kNone.
  size_t TagEnd(size_t pos, absl::string_view closing, bool is_block) const {
    const char sign = Sign(pos);
    if (sign == '-' && At(pos + 1, closing)) return SkipSpace(pos + 1 + closing.size());
    if (sign == '+' && is_block && At(pos + 1, closing)) return pos + 1 + closing.size();
    if (!At(pos, closing)) return kNone;
    pos += closing.size();
    return is_block && At(pos, "\n") ? pos + 1 : pos;
  }

  absl::Status NextTag() {
    size_t tag = source_.find('{', pos_);
    while (tag != kNone && !At(tag, "{%") && !At(tag, "{{") && !At(tag, "{#")) tag = source_.find('{', tag + 1);
    if (tag == kNone) {
      Emit(TokenKind::kData, Rest(pos_));
      MoveTo(source_.size());
      return absl::OkStatus();
    }
    const char sign = Sign(tag + 2);
    const size_t after = tag + (sign == ' ' ? 2 : 3);
    const bool is_variable = At(tag, "{{");
    EmitData(tag, sign, is_variable);
    if (At(tag, "{#")) return Comment(after);
    if (const size_t raw = RawBegin(tag, after); raw != kNone) return Raw(raw);
    Emit(is_variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    MoveTo(after);
    return is_variable ? Tag("}}", TokenKind::kVariableEnd) : Tag("%}", TokenKind::kBlockEnd);
  }

  absl::Status Comment(size_t start) {
    const size_t hash = source_.find("#}", start);
    if (hash == kNone) return SyntaxError("the comment has no end ('#}')", line_);
    const bool signed_end = hash > start && (source_[hash - 1] == '-' || source_[hash - 1] == '+');
    MoveTo(TagEnd(signed_end ? hash - 1 : hash, "#}", true));
    return absl::OkStatus();
  }

  // Returns the end of the "{% raw %}" at `tag`; kNone for another tag.
  size_t RawBegin(size_t tag, size_t after) const {
    if (!At(tag, "{%")) return kNone;
    size_t pos = SkipSpace(after);
    if (!At(pos, "raw")) return kNone;
    pos = SkipSpace(pos + 3);
    if (At(pos, "-%}")) return SkipSpace(pos + 3);
    return At(pos, "%}") ? pos + 2 : kNone;
  }

  absl::Status Raw(size_t start) {
    const int begin_line = line_;
    MoveTo(start);
    for (size_t tag = source_.find("{%", start); tag != kNone; tag = source_.find("{%", tag + 1)) {
      const char sign = Sign(tag + 2);
      size_t pos = SkipSpace(tag + (sign == ' ' ? 2 : 3));
      if (!At(pos, "endraw")) continue;
      const size_t end = TagEnd(SkipSpace(pos + 6), "%}", true);
      if (end == kNone) continue;
      EmitData(tag, sign, false);
      MoveTo(end);
      return absl::OkStatus();
    }
    return SyntaxError("the raw block has no end ('{% endraw %}')", begin_line);
  }

  // Emits the tokens inside a tag, including its end.
  absl::Status Tag(absl::string_view closing, TokenKind end_kind) {
    const int begin_line = line_;
    open_.clear();
    while (pos_ < source_.size()) {
      if (open_.empty()) {
        if (const size_t end = TagEnd(pos_, closing, end_kind == TokenKind::kBlockEnd); end != kNone) {
          Emit(end_kind, "");
          MoveTo(end);
          return absl::OkStatus();
        }
      }
      RETURN_IF_ERROR(InsideTag());
    }
    return SyntaxError(absl::StrCat("the tag has no end ('", closing, "')"), begin_line);
  }

  absl::Status InsideTag() {
    const char c = source_[pos_];
    if (const size_t end = SkipSpace(pos_); end > pos_) {
      MoveTo(end);
      return absl::OkStatus();
    }
    if (absl::ascii_isdigit(static_cast<unsigned char>(c))) return Number();
    if (absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' || static_cast<unsigned char>(c) >= 0x80) {
      return Name();
    }
    if (c == '\'' || c == '"') return String(c);
    return Operator();
  }

  absl::Status Name() {
    size_t end = pos_;
    while (end < source_.size()) {
      const auto [c, len] = DecodeAt(source_, end);
      if (c != '_' && !IsAlpha(c) && !IsDigit(c)) break;
      end += len;
    }
    if (end == pos_) return SyntaxError("invalid character in a name", line_);
    Emit(TokenKind::kName, Rest(pos_).substr(0, end - pos_));
    MoveTo(end);
    return absl::OkStatus();
  }

  absl::Status Number() {
    const bool after_dot = !tokens_.empty() && tokens_.back().IsOperator(".") && source_[pos_ - 1] == '.';
    const NumberText number = ScanNumber(Rest(pos_), !after_dot);
    Token& token = Emit(number.is_float ? TokenKind::kFloat : TokenKind::kInteger, number.digits);
    if (number.is_float) {
      if (!absl::SimpleAtod(number.digits, &token.number)) return SyntaxError("invalid number", line_);
    } else {
      char* end = nullptr;
      errno = 0;
      token.integer = std::strtoll(number.digits.c_str(), &end, number.base);
      if (errno != 0) return SyntaxError(absl::StrCat("the integer ", number.digits, " does not fit 64 bits"), line_);
    }
    MoveTo(pos_ + number.length);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return SyntaxError("the string has no end", line_);
    const auto text = Unescape(Rest(pos_ + 1).substr(0, end - pos_ - 1));
    if (!text.ok()) return SyntaxError(text.status().message(), line_);
    Emit(TokenKind::kString, *text);
    MoveTo(end + 1);
    return absl::OkStatus();
  }

  absl::Status Operator() {
    static constexpr absl::string_view kTwo[] = {"**", "//", "==", "!=", ">=", "<="};
    static constexpr absl::string_view kOne = "+-/*%~[](){}><=.:|,;";
    size_t len = 0;
    for (absl::string_view op : kTwo) {
      if (At(pos_, op)) len = 2;
    }
    if (len == 0 && kOne.find(source_[pos_]) != kNone) len = 1;
    if (len == 0) return SyntaxError(absl::StrCat("unexpected character '", Rest(pos_).substr(0, 1), "'"), line_);
    const absl::string_view op = Rest(pos_).substr(0, len);
    if (op == "(") open_.push_back(')');
    if (op == "[") open_.push_back(']');
    if (op == "{") open_.push_back('}');
    if (op == ")" || op == "]" || op == "}") {
      if (open_.empty()) return SyntaxError(absl::StrCat("unexpected '", op, "'"), line_);
      if (open_.back() != op[0]) {
        return SyntaxError(absl::StrCat("unexpected '", op, "', expected '", std::string(1, open_.back()), "'"), line_);
      }
      open_.pop_back();
    }
    Emit(TokenKind::kOperator, op);
    MoveTo(pos_ + len);
    return absl::OkStatus();
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::string open_;  // the expected closing brackets, innermost last
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  std::string text = NormalizeNewlines(source);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(std::move(text)).Run();
}

absl::Status SyntaxError(absl::string_view what, int line) {
  return absl::InvalidArgumentError(absl::StrCat(what, " (line ", line, ")"));
}

std::string Describe(const Token& token) {
  static constexpr absl::string_view kByKind[] = {
      "text", "'{%'", "'%}'", "'{{'", "'}}'", "", "a string", "", "", "", "the end of the template"};
  const absl::string_view fixed = kByKind[static_cast<size_t>(token.kind)];
  return fixed.empty() ? absl::StrCat("'", token.text, "'") : std::string(fixed);
}

}  // namespace switchyard::jinja
