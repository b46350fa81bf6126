// The server's only table of characters: classes, cases and normal forms, from utf8proc (Unicode 15; characters of
// Unicode 14 behave the same).  Pure functions; thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::text {

bool IsWhitespace(char32_t c);           // property White_Space
bool IsLetter(char32_t c);               // general category L
bool IsUppercase(char32_t c);            // Lu
bool IsLowercase(char32_t c);            // Ll
bool IsTitlecase(char32_t c);            // Lt
bool IsMark(char32_t c);                 // M
bool IsNonspacingMark(char32_t c);       // Mn
bool IsNumeric(char32_t c);              // N
bool IsDecimal(char32_t c);              // Nd
bool IsPunctuation(char32_t c);          // P, or an ASCII punctuation sign (which includes some of S)
bool IsSeparator(char32_t c);            // Z
bool IsControlOrUnassigned(char32_t c);  // C (Cc, Cf, Cn, Co, Cs)
bool IsWord(char32_t c);                 // `\w` of UTS 18: Alphabetic, M, Nd, Pc, Join_Control

// Map one character to one, independent of its neighbours; not correct for ß, İ and a sigma that ends a word.
char32_t ToUppercase(char32_t c);
char32_t ToLowercase(char32_t c);
char32_t ToTitlecase(char32_t c);

// Appends the full lower case of one character, independent of its neighbours (the final sigma is not special).
void AppendLowercase(char32_t c, std::string* out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Normalizes as HuggingFace's library does: characters that newer Unicode versions gave a combining class or a
// decomposition stay unchanged.  O(n log n), also for long runs of combining marks.  REQUIRES: text is valid UTF-8.
std::string Normalize(NormalForm form, absl::string_view text);

}  // namespace switchyard::text
