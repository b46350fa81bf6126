// What every fuzz target has: one function, which must return, whatever bytes it gets.  It aborts (SY_CHECK) where a
// property does not hold.  entry.cc hands it to libFuzzer; replay_main.cc to the committed corpus, without libFuzzer.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::fuzz {

// The target.
void Fuzz(absl::string_view input);

// An input that has two parts: what is before and what is behind its first NUL, which no text contains.
inline std::pair<absl::string_view, absl::string_view> CutAtNul(absl::string_view input) {
  const size_t nul = input.find('\0');
  if (nul == absl::string_view::npos) return {input, absl::string_view()};
  return {input.substr(0, nul), input.substr(nul + 1)};
}

// Any bytes as valid UTF-8.
inline std::string Utf8(absl::string_view bytes) {
  std::string text;
  LossyUtf8 lossy;
  lossy.Append(bytes, &text);
  lossy.Flush(&text);
  return text;
}

// What was parsed twice from the same bytes ended alike (but for payloads, whose maps have no order).
template <class Value>
void CheckSameEnd(const absl::StatusOr<Value>& first, const absl::StatusOr<Value>& second) {
  constexpr auto kMode = absl::StatusToStringMode::kWithNoExtraData;
  SY_CHECK_EQ(first.status().ToString(kMode), second.status().ToString(kMode));
}

}  // namespace switchyard::fuzz
