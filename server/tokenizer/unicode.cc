#include "server/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "scheduler/base/check.h"
#include "server/tokenizer/utf8.h"

namespace switchyard {
namespace {

utf8proc_category_t Category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Puts each run of combining marks into canonical order.  utf8proc would do it itself, by insertion: quadratic.
void SortMarks(std::vector<utf8proc_int32_t>* chars) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  const auto by_class = [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); };
  size_t i = 0;
  while (i < chars->size()) {
    if ((*chars)[i] < 0x300 || combining_class((*chars)[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < chars->size() && combining_class((*chars)[end]) != 0) ++end;
    std::stable_sort(chars->begin() + i, chars->begin() + end, by_class);
    i = end;
  }
}

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsMark(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool IsNonspacingMark(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_MN; }

bool IsNumeric(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsWord(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // Join_Control, and Other_Alphabetic among the symbols: circled, squared and negative letters.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool IsControlOrUnassigned(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_CN || (category >= UTF8PROC_CATEGORY_CC && category <= UTF8PROC_CATEGORY_CO);
}

void AppendLowercase(char32_t c, std::string* out) {
  if (c == 0x130) {  // the one character whose lower case is two
    out->append("i\xCC\x87");
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

std::string Normalize(NormalForm form, absl::string_view text) {
  const bool ascii =
      std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  if (ascii) return std::string(text.data(), text.size());
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto decompose_options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size());
  constexpr int kMaxDecomposed = 32;  // the longest is 18
  utf8proc_int32_t buffer[kMaxDecomposed];
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(DecodeUtf8(text, &pos));
    int last_boundclass = 0;
    const auto count = utf8proc_decompose_char(c, buffer, kMaxDecomposed, decompose_options, &last_boundclass);
    SY_CHECK(count >= 0 && count <= kMaxDecomposed);
    chars.insert(chars.end(), buffer, buffer + count);
  }
  SortMarks(&chars);
  utf8proc_ssize_t length = static_cast<utf8proc_ssize_t>(chars.size());
  if (compose) {
    length = utf8proc_normalize_utf32(chars.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    SY_CHECK(length >= 0);
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(static_cast<char32_t>(chars[i]), &out);
  return out;
}

}  // namespace switchyard
