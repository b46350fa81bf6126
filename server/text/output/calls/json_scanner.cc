#include "server/text/output/calls/json_scanner.h"

#include "absl/strings/ascii.h"

namespace switchyard::text {
namespace {

bool IsControl(char byte) { return static_cast<unsigned char>(byte) < 0x20; }

}  // namespace

void AppendJsonEscaped(absl::string_view text, std::string* out) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  for (const char byte : text) {
    switch (byte) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (!IsControl(byte)) {
          *out += byte;
          break;
        }
        *out += "\\u00";
        *out += kHexDigits[byte >> 4];
        *out += kHexDigits[byte & 15];
    }
  }
}

JsonScanner::Step JsonScanner::Take(char byte, std::string* out) {
  if (state_ >= State::kMinus) return TakeNumber(byte, out);
  if (state_ >= State::kString && state_ <= State::kHex) return TakeString(byte, out);
  return TakeStructure(byte, out);
}

JsonScanner::Step JsonScanner::TakeStructure(char byte, std::string* out) {
  Step step = Step::kMore;
  if (state_ == State::kLiteral) {
    if (byte != literal_.front()) return Step::kBad;
    literal_.remove_prefix(1);
    if (literal_.empty()) step = EndValue();
  } else if (!IsJsonSpace(byte)) {
    switch (state_) {
      case State::kColon:
        if (byte != ':') return Step::kBad;
        state_ = State::kValue;
        break;
      case State::kKey:
      case State::kFirstKey:
        if (byte == '}' && state_ == State::kFirstKey) {
          step = Close('{');
        } else if (byte == '"') {
          in_key_ = true;
          state_ = State::kString;
        } else {
          return Step::kBad;
        }
        break;
      case State::kAfterValue:
        if (byte == ',') {
          state_ = open_.back() == '{' ? State::kKey : State::kValue;
        } else {
          step = byte == '}' ? Close('{') : byte == ']' ? Close('[') : Step::kBad;
        }
        break;
      default:
        step = byte == ']' && state_ == State::kFirstValue ? Close('[') : BeginValue(byte);
    }
  }
  if (step != Step::kBad) *out += byte;
  return step;
}

JsonScanner::Step JsonScanner::BeginValue(char byte) {
  switch (byte) {
    case '{':
    case '[':
      return Open(byte);
    case '"':
      in_key_ = false;
      state_ = State::kString;
      return Step::kMore;
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    case '-':
      state_ = State::kMinus;
      return Step::kMore;
    case '0':
      state_ = State::kZero;
      return Step::kMore;
    default:
      state_ = State::kDigits;
      return absl::ascii_isdigit(static_cast<unsigned char>(byte)) ? Step::kMore : Step::kBad;
  }
  state_ = State::kLiteral;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Open(char bracket) {
  if (open_.size() == kMaxJsonDepth) return Step::kBad;
  open_ += bracket;
  state_ = bracket == '{' ? State::kFirstKey : State::kFirstValue;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Close(char bracket) {
  if (open_.empty() || open_.back() != bracket) return Step::kBad;
  open_.pop_back();
  return EndValue();
}

JsonScanner::Step JsonScanner::EndValue() {
  state_ = State::kAfterValue;
  return open_.empty() ? Step::kDone : Step::kMore;
}

JsonScanner::Step JsonScanner::TakeString(char byte, std::string* out) {
  if (state_ == State::kHex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(byte))) return Step::kBad;
    if (--hex_left_ == 0) state_ = State::kString;
  } else if (state_ == State::kEscape) {
    if (absl::string_view("\"\\/bfnrtu").find(byte) == absl::string_view::npos) return Step::kBad;
    state_ = byte == 'u' ? State::kHex : State::kString;
    hex_left_ = 4;
  } else if (byte == '\\') {
    state_ = State::kEscape;
  } else if (IsControl(byte)) {
    AppendJsonEscaped(absl::string_view(&byte, 1), out);
    return Step::kMore;
  } else if (byte == '"') {
    *out += byte;
    if (!in_key_) return EndValue();
    state_ = State::kColon;
    return Step::kMore;
  }
  *out += byte;
  return Step::kMore;
}

bool JsonScanner::EndsNumber() const {
  return state_ == State::kZero || state_ == State::kDigits || state_ == State::kFraction ||
         state_ == State::kExponentDigits;
}

JsonScanner::Step JsonScanner::TakeNumber(char byte, std::string* out) {
  const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(byte));
  const bool whole = state_ == State::kZero || state_ == State::kDigits;
  if (digit && state_ != State::kZero) {
    if (state_ == State::kMinus) {
      state_ = byte == '0' ? State::kZero : State::kDigits;
    } else if (state_ == State::kPoint) {
      state_ = State::kFraction;
    } else if (state_ == State::kExponent || state_ == State::kExponentSign) {
      state_ = State::kExponentDigits;
    }
  } else if (byte == '.' && whole) {
    state_ = State::kPoint;
  } else if ((byte == 'e' || byte == 'E') && (whole || state_ == State::kFraction)) {
    state_ = State::kExponent;
  } else if ((byte == '+' || byte == '-') && state_ == State::kExponent) {
    state_ = State::kExponentSign;
  } else {
    if (!EndsNumber() || digit) return Step::kBad;
    return EndValue() == Step::kDone ? Step::kDoneBefore : TakeStructure(byte, out);
  }
  *out += byte;
  return Step::kMore;
}

}  // namespace switchyard::text
