// Character classes and normal forms, from utf8proc's tables (Unicode 15; characters that Unicode 14 assigned behave
// the same).  Pure functions; thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard {

bool IsWhitespace(char32_t c);           // property White_Space
bool IsMark(char32_t c);                 // general category M
bool IsNonspacingMark(char32_t c);       // Mn
bool IsNumeric(char32_t c);              // N
bool IsPunctuation(char32_t c);          // P, or an ASCII punctuation sign (which includes some of S)
bool IsWord(char32_t c);                 // `\w` of UTS 18: Alphabetic, M, Nd, Pc, Join_Control
bool IsControlOrUnassigned(char32_t c);  // C (Cc, Cf, Cn, Co, Cs)

// Full lower case of one character, independent of its neighbours (final sigma is not special).
void AppendLowercase(char32_t c, std::string* out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// As HuggingFace's library has them: characters that Unicode gave a combining class or a decomposition lately stay as
// they are.  Time O(n log n) also for long runs of combining marks.  REQUIRES: text is valid UTF-8.
std::string Normalize(NormalForm form, absl::string_view text);

}  // namespace switchyard
