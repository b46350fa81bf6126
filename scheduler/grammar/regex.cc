#include "scheduler/grammar/regex.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::grammar {
namespace {

constexpr int kMaxNesting = 100;
constexpr int32_t kMaxRepeat = 50'000;

const CharClass& Digits() {
  static const CharClass chars = {{'0', '9'}};
  return chars;
}
const CharClass& WordChars() {
  static const CharClass chars = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return chars;
}
const CharClass& AsciiSpaces() {
  static const CharClass chars = {{'\t', '\r'}, {' ', ' '}};
  return chars;
}
const CharClass& AllSpaces() {
  static const CharClass chars = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},     {0xa0, 0xa0},
                                  {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                  {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
  return chars;
}

class RegexReader {
 public:
  RegexReader(absl::string_view text, RegexMatch match) : text_(text), match_(match) {}

  absl::StatusOr<Expression> Read() {
    ASSIGN_OR_RETURN(Expression whole, Choice(0, /*outermost=*/true));
    if (at_ < text_.size()) return Fault("unmatched )");
    return whole;
  }

 private:
  absl::Status Fault(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("at byte ", at_, ": ", what));
  }
  bool AtEnd() const { return at_ >= text_.size(); }
  bool Take(absl::string_view what) {
    if (text_.substr(at_, what.size()) != what) return false;
    at_ += what.size();
    return true;
  }

  // `outermost`: nothing stands before or behind it, so that anchors may be at its ends.
  absl::StatusOr<Expression> Choice(int depth, bool outermost) {
    if (depth > kMaxNesting) return Fault(absl::StrCat("groups nested more than ", kMaxNesting, " deep"));
    Expression out{.kind = Expression::Kind::kChoice};
    do {
      ASSIGN_OR_RETURN(Expression part, Sequence(depth, outermost));
      out.parts.push_back(std::move(part));
    } while (Take("|"));
    if (out.parts.size() > 1) return out;
    return std::move(out.parts[0]);
  }

  absl::StatusOr<Expression> Sequence(int depth, bool outermost) {
    Expression out;
    bool from_start = false, to_end = false, whole_group = false;
    if (outermost) {
      from_start = Take("^");
      // A group around all, with anchors around it or in it.
      if (const size_t end = GroupEnd(); end != absl::string_view::npos) {
        const absl::string_view rest = text_.substr(end);
        const bool anchored = rest.substr(0, 1) == "$";
        const absl::string_view behind = rest.substr(anchored ? 1 : 0);
        whole_group = (behind.empty() || behind[0] == '|' || behind[0] == ')') && from_start == anchored;
        if (whole_group) {
          RETURN_IF_ERROR(OpenGroup());
          ASSIGN_OR_RETURN(Expression inner, Choice(depth + 1, /*outermost=*/!from_start));
          if (!Take(")")) return Fault("a group without )");
          Take("$");
          return inner;
        }
      }
    }
    while (!AtEnd() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$') {
        ++at_;
        const bool last = AtEnd() || text_[at_] == '|' || text_[at_] == ')';
        if (!outermost || !last) return Fault("$ elsewhere than at the end is not supported");
        to_end = true;
        break;
      }
      ASSIGN_OR_RETURN(Expression atom, Atom(depth));
      ASSIGN_OR_RETURN(atom, Quantified(std::move(atom)));
      out.parts.push_back(std::move(atom));
    }
    if (match_ == RegexMatch::kSearch && outermost) {
      const Expression anything = Expression::Times(Expression::Chars(CharClass::Any()), 0, kNoMaximum);
      if (!from_start) out.parts.insert(out.parts.begin(), anything);
      if (!to_end) out.parts.push_back(anything);
    }
    return out;
  }

  // Where the group that begins here ends, behind its ); npos: there is none, or it is no plain group.
  size_t GroupEnd() const {
    if (AtEnd() || text_[at_] != '(') return absl::string_view::npos;
    int open = 0;
    bool in_class = false;
    for (size_t i = at_; i < text_.size(); ++i) {
      if (text_[i] == '\\') {
        ++i;
      } else if (in_class) {
        in_class = text_[i] != ']';
      } else if (text_[i] == '[') {
        in_class = true;
      } else if (text_[i] == '(') {
        ++open;
      } else if (text_[i] == ')' && --open == 0) {
        return i + 1;
      }
    }
    return absl::string_view::npos;
  }

  absl::Status OpenGroup() {
    ++at_;
    if (!Take("?")) return absl::OkStatus();
    if (Take(":")) return absl::OkStatus();
    if (Take("=") || Take("!") || Take("<=") || Take("<!")) return Fault("look-around is not supported");
    Take("P");
    if (!Take("<")) return Fault("this kind of group is not supported");
    const size_t end = text_.find('>', at_);
    if (end == absl::string_view::npos) return Fault("a group's name without >");
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::StatusOr<Expression> Atom(int depth) {
    const char c = text_[at_];
    switch (c) {
      case '(': {
        RETURN_IF_ERROR(OpenGroup());
        ASSIGN_OR_RETURN(Expression inner, Choice(depth + 1, /*outermost=*/false));
        if (!Take(")")) return Fault("a group without )");
        return inner;
      }
      case '[':
        return Class();
      case '.':
        ++at_;
        return Expression::Chars(CharClass({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement());
      case '^':
        return Fault("^ elsewhere than at the beginning is not supported");
      case '*':
      case '+':
      case '?':
        return Fault("a quantifier without something to repeat");
      case '\\': {
        ASSIGN_OR_RETURN(CharClass chars, Escape(/*in_class=*/false));
        return Expression::Chars(std::move(chars));
      }
      default: {
        ASSIGN_OR_RETURN(const uint32_t letter, Letter());
        return Expression::Chars({{letter, letter}});
      }
    }
  }

  absl::StatusOr<uint32_t> Letter() {
    const auto lead = static_cast<uint8_t>(text_[at_]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xc0) || at_ + length > text_.size()) return Fault("not UTF-8");
    uint32_t c = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) c = (c << 6) | (static_cast<uint8_t>(text_[at_ + k]) & 0x3fu);
    at_ += length;
    return c;
  }

  absl::StatusOr<Expression> Quantified(Expression atom) {
    int32_t min = 1, max = 1;
    if (Take("*")) {
      min = 0, max = kNoMaximum;
    } else if (Take("+")) {
      max = kNoMaximum;
    } else if (Take("?")) {
      min = 0;
    } else if (!Braces(&min, &max)) {
      return atom;
    }
    if (min > kMaxRepeat || (max > kMaxRepeat && max != kNoMaximum) || min > max)
      return Fault(absl::StrCat("a repetition must be within 0 to ", kMaxRepeat, " times"));
    Take("?");
    if (!AtEnd() && text_[at_] == '+') return Fault("possessive quantifiers are not supported");
    if (int32_t again = 0; !AtEnd() && (text_[at_] == '*' || Braces(&again, &again))) return Fault("two quantifiers");
    return Expression::Times(std::move(atom), min, max);
  }

  // {m}, {m,}, {m,n}, {,n}; others are plain text.
  bool Braces(int32_t* min, int32_t* max) {
    if (AtEnd() || text_[at_] != '{') return false;
    // No further than numbers go: of many { without } each would look through the rest of the text.
    const size_t end = text_.find_first_not_of("0123456789,", at_ + 1);
    if (end == absl::string_view::npos || text_[end] != '}') return false;
    const absl::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inside.find(',');
    const absl::string_view low = inside.substr(0, comma);
    const absl::string_view high = comma == absl::string_view::npos ? low : inside.substr(comma + 1);
    const auto number = [](absl::string_view digits, int32_t otherwise, int32_t* to) {
      if (digits.empty()) return *to = otherwise, true;
      if (digits.find(',') != absl::string_view::npos) return false;
      if (!absl::SimpleAtoi(digits, to) || *to > kMaxRepeat) *to = kMaxRepeat + 1;
      return true;
    };
    if ((low.empty() && high.empty()) || !number(low, 0, min) || !number(high, kNoMaximum, max)) return false;
    at_ = end + 1;
    return true;
  }

  absl::StatusOr<CharClass> Escape(bool in_class) {
    ++at_;
    if (AtEnd()) return Fault("a \\ at the end");
    const char c = text_[at_];
    if (static_cast<uint8_t>(c) >= 0x80) return Fault("an escaped letter that is not ASCII");
    ++at_;
    const auto one = [](uint32_t letter) { return CharClass({{letter, letter}}); };
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordChars();
      case 'W':
        return WordChars().Complement();
      case 's':
        return AsciiSpaces();
      case 'S':
        return AllSpaces().Complement();
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return Hex(2);
      case 'u':
        if (Take("{")) {
          const size_t end = text_.find('}', at_);
          if (end == absl::string_view::npos || end - at_ > 6 || end == at_)
            return Fault("\\u{ without a number and }");
          ASSIGN_OR_RETURN(CharClass chars, Hex(static_cast<int>(end - at_)));
          ++at_;
          return chars;
        }
        return Hex(4);
      case 'b':
        if (in_class) return one('\b');
        return Fault("\\b is not supported");
      default:
        if (absl::ascii_isdigit(c)) return Fault("back references are not supported");
        if (absl::ascii_isalpha(c)) return Fault(absl::StrCat("\\", std::string(1, c), " is not supported"));
        return one(static_cast<uint8_t>(c));
    }
  }

  absl::StatusOr<CharClass> Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (AtEnd() || !absl::ascii_isxdigit(text_[at_]))
        return Fault(absl::StrCat(digits, " hexadecimal digits wanted"));
      const char c = absl::ascii_tolower(text_[at_]);
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    CharClass chars;
    chars.Add(value, value);
    if (chars.empty()) return Fault("a surrogate, or past the last character");
    return chars;
  }

  absl::StatusOr<Expression> Class() {
    ++at_;
    const bool negated = Take("^");
    CharClass chars;
    std::vector<CharClass::Range> letters;  // added in their order, as each that comes before many moves these
    for (bool first = true; first || AtEnd() || text_[at_] != ']'; first = false) {
      if (AtEnd()) return Fault("a [ without ]");
      if (text_[at_] == ']' && first) break;  // as ECMA: nothing
      ASSIGN_OR_RETURN(const CharClass low, ClassMember());
      if (AtEnd() || text_[at_] != '-' || text_.substr(at_ + 1, 1) == "]" || !IsOne(low)) {
        if (IsOne(low)) {
          letters.push_back(low.ranges()[0]);
        } else {
          chars.Add(low);
        }
        continue;
      }
      ++at_;
      if (AtEnd()) return Fault("a [ without ]");
      ASSIGN_OR_RETURN(const CharClass high, ClassMember());
      if (!IsOne(high)) return Fault("a range needs two letters");
      if (low.ranges()[0].low > high.ranges()[0].low) return Fault("a range that is out of order");
      letters.push_back({low.ranges()[0].low, high.ranges()[0].low});
    }
    ++at_;
    std::sort(letters.begin(), letters.end(), [](const auto& a, const auto& b) { return a.low < b.low; });
    for (const CharClass::Range& range : letters) chars.Add(range.low, range.high);
    return Expression::Chars(negated ? chars.Complement() : chars);
  }
  absl::StatusOr<CharClass> ClassMember() {
    if (text_[at_] == '\\') return Escape(/*in_class=*/true);
    ASSIGN_OR_RETURN(const uint32_t letter, Letter());
    return CharClass({{letter, letter}});
  }
  static bool IsOne(const CharClass& chars) {
    return chars.ranges().size() == 1 && chars.ranges()[0].low == chars.ranges()[0].high;
  }

  const absl::string_view text_;
  const RegexMatch match_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<Expression> ParseRegex(absl::string_view regex, RegexMatch match) {
  return RegexReader(regex, match).Read();
}

}  // namespace switchyard::grammar
