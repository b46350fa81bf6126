#include "server/text/tokenizer/regex_syntax.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace switchyard::tokenizer {
namespace {

// Scripts that patterns name.
constexpr const char* kScripts[] = {"Arabic",   "Armenian", "Bengali", "Bopomofo", "Cyrillic", "Devanagari",
                                    "Ethiopic", "Georgian", "Greek",   "Han",      "Hangul",   "Hebrew",
                                    "Hiragana", "Katakana", "Khmer",   "Lao",      "Latin",    "Mongolian",
                                    "Myanmar",  "Tamil",    "Telugu",  "Thai",     "Tibetan"};
// Measured over every assigned code point: in a set, \w is UTS 18's word without Join_Control; outside of one it also
// has the superscripts and fractions of Latin-1.
constexpr char kWordInSet[] = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr char kWord[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}])";
constexpr char kNotWord[] = R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}])";

// POSIX classes whose Unicode meaning differs from PCRE2's; the others agree ([:graph:] and [:print:] nearly).
constexpr std::pair<absl::string_view, absl::string_view> kPosixClasses[] = {
    {"alpha", R"(\p{Alphabetic})"}, {"alnum", R"(\p{Alphabetic}\p{Nd})"}, {"upper", R"(\p{Uppercase})"},
    {"lower", R"(\p{Lowercase})"},  {"space", R"(\p{White_Space})"},      {"punct", R"(\p{P}\p{S})"},
    {"word", kWordInSet},
};

class Rewriter {
 public:
  explicit Rewriter(absl::string_view in) : in_(in) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) {
      if (absl::Status status = Step(); !status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("regex: ", what, " at offset ", pos_, " is not supported"));
  }
  bool At(absl::string_view text) const { return in_.substr(pos_, text.size()) == text; }
  void Copy(size_t count) {
    out_.append(in_.data() + pos_, std::min(count, in_.size() - pos_));
    pos_ = std::min(pos_ + count, in_.size());
  }

  // Rewrites one element outside a character class.  atom_ is the start in out_ of the last one, which a quantifier
  // repeats.
  absl::Status Step() {
    switch (in_[pos_]) {
      case '\\':
        atom_ = out_.size();
        return Escape(/*in_class=*/false);
      case '[':
        atom_ = out_.size();
        return Class();
      case '(':
        groups_.push_back(out_.size());
        return OpenGroup();
      case ')':
        if (!groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        }
        Copy(1);
        return absl::OkStatus();
      case '{':
        return Repeat();
      case '*':
      case '+':
      case '?':
        Copy(1);  // `*+`, `++`, `?+`, `*?`...: the second sign means the same in both
        return absl::OkStatus();
      default:
        atom_ = out_.size();
        Copy(Character());
        return absl::OkStatus();
    }
  }

  // Returns the bytes of the character here, so that a quantifier repeats a whole one.
  size_t Character() const {
    size_t length = 1;
    while (pos_ + length < in_.size() && (static_cast<unsigned char>(in_[pos_ + length]) & 0xC0) == 0x80) ++length;
    return length;
  }

  absl::Status OpenGroup() {
    if (!At("(?")) {
      Copy(1);
      return absl::OkStatus();
    }
    Copy(2);
    if (At("#")) {  // a comment, up to the next parenthesis
      const size_t close = in_.find(')', pos_);
      if (close != absl::string_view::npos) Copy(close - pos_);
      return absl::OkStatus();
    }
    // Option letters, up to `:` or `)`; anything else is not an option group.
    size_t end = pos_;
    while (end < in_.size() && absl::string_view("imx-").find(in_[end]) != absl::string_view::npos) ++end;
    if (end == in_.size() || (in_[end] != ':' && in_[end] != ')')) return absl::OkStatus();
    for (; pos_ < end; ++pos_) out_.push_back(in_[pos_] == 'm' ? 's' : in_[pos_]);
    return absl::OkStatus();
  }

  absl::Status Repeat() {
    size_t p = pos_ + 1;
    const auto digits = [&] {
      const size_t begin = p;
      while (p < in_.size() && absl::ascii_isdigit(in_[p])) ++p;
      return in_.substr(begin, p - begin);
    };
    const absl::string_view low = digits();
    const bool range = p < in_.size() && in_[p] == ',';
    if (range) ++p;
    const absl::string_view high = range ? digits() : absl::string_view();
    if (p >= in_.size() || in_[p] != '}' || (low.empty() && high.empty())) {  // a literal brace
      atom_ = out_.size();
      Copy(1);
      return absl::OkStatus();
    }
    absl::StrAppend(&out_, "{", low.empty() ? "0" : low, range ? "," : "", high, "}");
    pos_ = p + 1;
    const bool wrapped = pos_ < in_.size() && (in_[pos_] == '+' || (in_[pos_] == '?' && !range));
    if (wrapped) {
      out_.insert(atom_, "(?:");
      out_.push_back(')');
      for (size_t& group : groups_) {
        if (group > atom_) group += 3;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Class() {
    Copy(1);
    if (At("^")) Copy(1);
    if (At("]")) {  // first in a class: itself
      out_ += "\\]";
      ++pos_;
    }
    while (pos_ < in_.size() && in_[pos_] != ']') {
      if (At("[:")) {
        if (absl::Status status = PosixClass(); !status.ok()) return status;
      } else if (At("[")) {
        return Refuse("a set inside a set");
      } else if (At("&&")) {
        return Refuse("an intersection of sets (&&)");
      } else if (At("\\")) {
        if (absl::Status status = Escape(/*in_class=*/true); !status.ok()) return status;
      } else {
        Copy(1);
      }
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status PosixClass() {
    const size_t close = in_.find(":]", pos_);
    if (close == absl::string_view::npos) return Refuse("an open POSIX bracket");
    const absl::string_view name = in_.substr(pos_ + 2, close - pos_ - 2);
    for (const auto& [posix, unicode] : kPosixClasses) {
      if (!name.empty() && name[0] == '^' && name.substr(1) == posix) return Refuse("a negated POSIX bracket");
      if (name != posix) continue;
      out_.append(unicode.data(), unicode.size());
      pos_ = close + 2;
      return absl::OkStatus();
    }
    Copy(close + 2 - pos_);
    return absl::OkStatus();
  }

  absl::Status Escape(bool in_class) {
    const char letter = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    const auto replace = [&](absl::string_view text) {
      out_.append(text.data(), text.size());
      pos_ += 2;
      return absl::OkStatus();
    };
    switch (letter) {
      case 's':
        return replace(R"(\p{White_Space})");
      case 'S':
        return replace(R"(\P{White_Space})");
      case 'h':
        return replace(in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]");
      case 'H':
        if (in_class) return Refuse("\\H in a set");
        return replace("[^0-9A-Fa-f]");
      case 'w':
        return replace(in_class ? kWordInSet : kWord);
      case 'W':
        if (in_class) return Refuse("\\W in a set");
        return replace(kNotWord);
      case 'u': {
        const absl::string_view digits = in_.substr(pos_ + 2, 4);
        for (const char c : digits) {
          if (!absl::ascii_isxdigit(c)) return Refuse("\\u without four hexadecimal digits");
        }
        if (digits.size() < 4) return Refuse("\\u without four hexadecimal digits");
        absl::StrAppend(&out_, "\\x{", digits, "}");
        pos_ += 6;
        return absl::OkStatus();
      }
      case 'p':
      case 'P':
      case 'x': {  // its braced argument is no repeat
        const size_t close =
            pos_ + 2 < in_.size() && in_[pos_ + 2] == '{' ? in_.find('}', pos_) : absl::string_view::npos;
        if (close == absl::string_view::npos) {
          Copy(2);
          return absl::OkStatus();
        }
        const absl::string_view name = in_.substr(pos_ + 3, close - pos_ - 3);
        const bool script = letter != 'x' && std::any_of(std::begin(kScripts), std::end(kScripts),
                                                         [&](const char* each) { return name == each; });
        if (!script) {
          Copy(close + 1 - pos_);
          return absl::OkStatus();
        }
        absl::StrAppend(&out_, "\\", std::string(1, letter), "{sc:", name, "}");
        pos_ = close + 1;
        return absl::OkStatus();
      }
      default:
        ++pos_;
        out_.push_back('\\');
        if (pos_ < in_.size()) Copy(Character());
        return absl::OkStatus();
    }
  }

  const absl::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;
  std::vector<size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

absl::StatusOr<std::string> OnigurumaToPcre2(absl::string_view pattern) { return Rewriter(pattern).Run(); }

}  // namespace switchyard::tokenizer
