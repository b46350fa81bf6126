// Follows one JSON value byte by byte, and makes it valid: a control character within a string, which models write and
// JSON forbids, becomes an escape.
//
// Checks the grammar (RFC 8259) and the depth, not UTF-8: what is valid UTF-8 gives valid JSON.  Holds a bit for each
// open container, nothing of the text.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::text {

inline constexpr size_t kMaxJsonDepth = 128;

class JsonScanner {
 public:
  enum class Step : uint8_t {
    kMore,
    kDone,        // the value ends with this byte
    kDoneBefore,  // it ended before this byte, which is not part of it (only a number)
    kBad,         // no JSON, or deeper than kMaxJsonDepth
  };

  // Appends the byte, or its escape, to *out, unless it is bad or behind the value.  White space before the value is
  // taken.  REQUIRES: the value has not ended.
  Step Take(char byte, std::string* out);

 private:
  enum class State : uint8_t {
    kValue,
    kFirstValue,  // or the end of the array
    kKey,
    kFirstKey,  // or the end of the object
    kColon,
    kAfterValue,  // a comma, or the end of the container
    kString,
    kEscape,
    kHex,
    kLiteral,
    // Within a number, behind:
    kMinus,
    kZero,
    kDigits,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };

  Step TakeString(char byte, std::string* out);
  Step TakeNumber(char byte, std::string* out);
  Step TakeStructure(char byte, std::string* out);
  Step BeginValue(char byte);
  Step Open(char bracket);
  Step Close(char bracket);
  Step EndValue();
  // Whether a number may end in this state.
  bool EndsNumber() const;

  State state_ = State::kValue;
  std::string open_;           // '{' or '[' of each open container
  bool in_key_ = false;        // the string is a key
  int hex_left_ = 0;           // digits of \u that are due
  absl::string_view literal_;  // what is due of true, false or null
};

// Appends `text` as the inside of a JSON string, without its quotes.  Bytes that are not ASCII pass as they are.
void AppendJsonEscaped(absl::string_view text, std::string* out);
inline std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(text, &out);
  return out + '"';
}

inline bool IsJsonSpace(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

}  // namespace switchyard::text
