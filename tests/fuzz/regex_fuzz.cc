// A pattern of a tokenizer.json and, behind a NUL, a text for it.  Matches come in order, within the text, between
// characters, and the same each time.
#include <vector>

#include "server/text/tokenizer/regex.h"
#include "server/text/tokenizer/regex_syntax.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

absl::Status Find(const tokenizer::Regex& regex, absl::string_view text, std::vector<size_t>* ends) {
  const auto between = [&](size_t at) { return at == text.size() || (text[at] & 0xc0) != 0x80; };
  return regex.ForEachMatch(text, [&](tokenizer::Match match) {
    SY_CHECK_LE(match.begin, match.end);
    SY_CHECK_LE(match.end, text.size());
    if (!ends->empty()) SY_CHECK_LE(ends->back(), match.begin);
    SY_CHECK(between(match.begin) && between(match.end));
    ends->push_back(match.end);
    return absl::OkStatus();
  });
}

}  // namespace

void Fuzz(absl::string_view input) {
  const auto [pattern, rest] = CutAtNul(input);
  const auto rewritten = tokenizer::OnigurumaToPcre2(pattern);
  CheckSameEnd(rewritten, tokenizer::OnigurumaToPcre2(pattern));
  const auto regex = tokenizer::Regex::Compile(pattern);
  if (!regex.ok()) return;
  const std::string text = Utf8(rest);
  std::vector<size_t> ends, again;
  const absl::Status status = Find(*regex, text, &ends);
  SY_CHECK_EQ(Find(*regex, text, &again).ToString(), status.ToString());
  SY_CHECK(ends == again);
  SY_CHECK(status.code() != absl::StatusCode::kInternal);
}

}  // namespace switchyard::fuzz
