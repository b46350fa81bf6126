// Unicode's normal forms.
#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/unicode/unicode.h"

namespace switchyard::text {
namespace {

// Puts each run of combining marks into canonical order; utf8proc's own insertion sort would be quadratic.
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

// Characters that have a combining class or a decomposition today, but none in the old Unicode of HuggingFace's library
// (compared over all code points that Unicode 15 assigns): they stay unchanged and separate their neighbours.  U+11930
// is one of them because its composition with U+11935 is newer.
constexpr std::pair<char32_t, char32_t> kInert[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

bool IsInert(char32_t c) {
  const auto range = std::partition_point(std::begin(kInert), std::end(kInert),
                                          [c](const auto& candidate) { return candidate.second < c; });
  return range != std::end(kInert) && range->first <= c;
}

// Appends the normal form of a run without inert characters, and empties it.
void NormalizeRun(NormalForm form, std::vector<utf8proc_int32_t>* run, std::string* out) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(run->size());
  constexpr int kMaxDecomposed = 32;  // the longest is 18
  utf8proc_int32_t buffer[kMaxDecomposed];
  for (const utf8proc_int32_t c : *run) {
    int last_boundclass = 0;
    const auto count = utf8proc_decompose_char(c, buffer, kMaxDecomposed, options, &last_boundclass);
    SY_CHECK(count >= 0 && count <= kMaxDecomposed);
    chars.insert(chars.end(), buffer, buffer + count);
  }
  SortMarks(&chars);
  auto length = static_cast<utf8proc_ssize_t>(chars.size());
  if (compose && length > 0) {
    length = utf8proc_normalize_utf32(chars.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    SY_CHECK(length >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(static_cast<char32_t>(chars[i]), out);
  run->clear();
}

}  // namespace

std::string Normalize(NormalForm form, absl::string_view text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text.data(), text.size());
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> run;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = DecodeUtf8(text, &pos);
    if (!IsInert(c)) {
      run.push_back(static_cast<utf8proc_int32_t>(c));
      continue;
    }
    NormalizeRun(form, &run, &out);
    AppendUtf8(c, &out);
  }
  NormalizeRun(form, &run, &out);
  return out;
}

}  // namespace switchyard::text
