#include "scheduler/grammar/ebnf.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/grammar/expression.h"
#include "scheduler/grammar/regex.h"

namespace switchyard::grammar {
namespace {

constexpr int kMaxDepth = 100;
constexpr size_t kMaxNameBytes = 128;

bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; }

class EbnfReader {
 public:
  explicit EbnfReader(absl::string_view text) : text_(text), grammar_(std::make_unique<Grammar>()) {}

  absl::StatusOr<std::unique_ptr<const Grammar>> Read() {
    (void)RuleOf("root");
    for (Skip(); at_ < text_.size(); Skip()) {
      const std::string name(Name());
      Skip();
      if (name.empty() || !Take("::=")) return Fault("a rule must begin with NAME ::=");
      Found& rule = RuleOf(name);
      if (std::exchange(rule.defined, true)) return Fault(absl::StrCat("rule \"", name, "\" is defined twice"));
      const RuleId id = rule.id;
      ASSIGN_OR_RETURN(const Expression body, Choice(0));
      if (!AtRule() && at_ < text_.size()) return Fault("a part of a rule wanted");
      grammar_->Define(id, [&](StateId from) { return Emit(body, Spelling::kPlain, from, grammar_.get()); });
    }
    RETURN_IF_ERROR(CheckDefined());
    RETURN_IF_ERROR(grammar_->Finish());
    return std::move(grammar_);
  }

 private:
  struct Found {
    RuleId id = 0;
    bool defined = false;
    size_t at = 0;  // behind its first mention
  };

  absl::Status CheckDefined() const {
    const std::pair<const std::string, Found>* first = nullptr;
    for (const auto& rule : rules_) {
      if (!rule.second.defined && (first == nullptr || rule.second.at < first->second.at)) first = &rule;
    }
    if (first == nullptr) return absl::OkStatus();
    return FaultAt(first->second.at, absl::StrCat("rule \"", first->first, "\" is not defined"));
  }
  absl::Status FaultAt(size_t at, absl::string_view what) const {
    const absl::string_view before = text_.substr(0, at);
    return absl::InvalidArgumentError(
        absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ": ", what));
  }
  absl::Status Fault(absl::string_view what) const { return FaultAt(at_, what); }
  bool Take(absl::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }
  void Skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (absl::ascii_isspace(text_[at_])) {
        ++at_;
      } else {
        return;
      }
    }
  }
  absl::string_view Name() {
    const size_t begin = at_;
    while (at_ < text_.size() && at_ - begin < kMaxNameBytes && IsNameByte(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // Whether the next rule begins here.
  bool AtRule() {
    const size_t begin = at_;
    const bool named = !Name().empty();
    Skip();
    const bool is_rule = named && text_.substr(at_, 3) == "::=";
    at_ = begin;
    return is_rule;
  }
  Found& RuleOf(const std::string& name) {
    const auto [it, is_new] = rules_.try_emplace(name);
    if (is_new) it->second = {.id = grammar_->AddRule(name), .at = at_};
    return it->second;
  }

  absl::StatusOr<Expression> Choice(int depth) {
    if (depth > kMaxDepth) return Fault(absl::StrCat("groups nested more than ", kMaxDepth, " deep"));
    Expression out{.kind = Expression::Kind::kChoice};
    do {
      Expression sequence;
      for (Skip(); at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')' && !AtRule(); Skip()) {
        ASSIGN_OR_RETURN(Expression part, Part(depth));
        ASSIGN_OR_RETURN(part, Quantified(std::move(part)));
        sequence.parts.push_back(std::move(part));
      }
      out.parts.push_back(std::move(sequence));
    } while (Take("|"));
    if (out.parts.size() > 1) return out;
    return std::move(out.parts[0]);
  }

  absl::StatusOr<Expression> Part(int depth) {
    const char c = text_[at_];
    if (Take("(")) {
      ASSIGN_OR_RETURN(Expression inner, Choice(depth + 1));
      if (!Take(")")) return Fault("a ( without )");
      return inner;
    }
    if (c == '"' || c == '\'') return Literal(c);
    if (c == '[') return Class();
    if (Take(".")) return Expression::Chars(CharClass::Any());
    const std::string name(Name());
    if (name.empty()) return Fault(absl::StrCat("unexpected \"", text_.substr(at_, 1), "\""));
    return Expression{.kind = Expression::Kind::kRule, .rule = RuleOf(name).id};
  }

  // Between the marks the letters are those of a regex, each standing for itself.
  absl::StatusOr<Expression> Literal(char mark) {
    Expression out;
    ++at_;
    while (at_ < text_.size() && text_[at_] != mark && text_[at_] != '\n') {
      size_t end = at_ + 1;
      if (text_[at_] == '\\' && end < text_.size()) {
        const char kind = text_[end];
        end += kind == 'x' ? 3 : kind == 'u' ? 5 : 1;
        ASSIGN_OR_RETURN(Expression letter, Letters(text_.substr(at_, end - at_)));
        if (letter.parts.size() == 1 && letter.parts[0].chars.ranges().size() > 1) return Fault("a class in a text");
        out.parts.push_back(std::move(letter));
      } else {
        while (end < text_.size() && (static_cast<uint8_t>(text_[end]) & 0xc0) == 0x80) ++end;
        out.parts.push_back(Expression::Text(text_.substr(at_, end - at_)));
      }
      at_ = end;
    }
    if (at_ >= text_.size() || text_[at_] != mark) return Fault("a text without its closing mark");
    ++at_;
    return out;
  }

  absl::StatusOr<Expression> Class() {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != ']') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return Fault("a [ without ]");
    ASSIGN_OR_RETURN(Expression letters, Letters(text_.substr(at_, end + 1 - at_)));
    at_ = end + 1;
    return letters;
  }

  absl::StatusOr<Expression> Letters(absl::string_view regex) const {
    absl::StatusOr<Expression> letters = ParseRegex(regex, RegexMatch::kWhole);
    if (!letters.ok()) return Fault(absl::StrCat("in ", regex, ", ", letters.status().message()));
    return letters;
  }

  absl::StatusOr<Expression> Quantified(Expression part) {
    if (Take("*")) return Expression::Times(std::move(part), 0, kNoMaximum);
    if (Take("+")) return Expression::Times(std::move(part), 1, kNoMaximum);
    if (Take("?")) return Expression::Times(std::move(part), 0, 1);
    if (!Take("{")) return part;
    const size_t end = text_.find('}', at_);
    const absl::string_view inside = text_.substr(at_, end == absl::string_view::npos ? 0 : end - at_);
    const size_t comma = inside.find(',');
    const absl::string_view high = comma == absl::string_view::npos ? inside : inside.substr(comma + 1);
    int32_t min = 0, max = kNoMaximum;
    const bool bad_low = !absl::SimpleAtoi(inside.substr(0, comma), &min);
    const bool bad_high = !absl::StripAsciiWhitespace(high).empty() && !absl::SimpleAtoi(high, &max);
    if (bad_low || bad_high || min < 0 || min > max) return Fault("{m}, {m,} or {m,n} wanted, with m <= n");
    at_ = end + 1;
    return Expression::Times(std::move(part), min, max);
  }

  const absl::string_view text_;
  size_t at_ = 0;
  std::unique_ptr<Grammar> grammar_;
  absl::flat_hash_map<std::string, Found> rules_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Grammar>> ParseEbnf(absl::string_view text) { return EbnfReader(text).Read(); }

}  // namespace switchyard::grammar
