#include "server/text/unicode/unicode.h"

#include <utf8proc.h>

#include "scheduler/base/text/utf8.h"

namespace switchyard::text {
namespace {

utf8proc_category_t Category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// utf8proc numbers the general categories in groups: CN, LU…LO, MN…ME, ND…NO, PC…PO, SM…SO, ZS…ZP, CC…CO.
bool IsWithin(char32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t category = Category(c);
  return category >= first && category <= last;
}

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsMark(char32_t c) { return IsWithin(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }
bool IsNonspacingMark(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_MN; }
bool IsNumeric(char32_t c) { return IsWithin(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return IsWithin(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool IsWord(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  // Letters, marks, decimal and letter numbers, connectors.
  if (IsWithin(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NL) || Category(c) == UTF8PROC_CATEGORY_PC) return true;
  // Join_Control, and Other_Alphabetic among the symbols: circled, squared and negative letters.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool IsControlOrUnassigned(char32_t c) {
  return Category(c) == UTF8PROC_CATEGORY_CN || IsWithin(c, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO);
}

bool IsLetter(char32_t c) { return IsWithin(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool IsUppercase(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }
bool IsLowercase(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL; }
bool IsTitlecase(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }
bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsSeparator(char32_t c) { return IsWithin(c, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP); }

char32_t ToUppercase(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t ToLowercase(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t ToTitlecase(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }

void AppendLowercase(char32_t c, std::string* out) {
  if (c == 0x130) {  // the one character whose lower case is two
    out->append("i\xCC\x87");
  } else {
    AppendUtf8(ToLowercase(c), out);
  }
}

}  // namespace switchyard::text
