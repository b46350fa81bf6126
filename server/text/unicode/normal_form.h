// Unicode's normal forms.  Pure functions; thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// As HuggingFace's library has them: characters that Unicode gave a combining class or a decomposition lately stay as
// they are.  Time O(n log n) also for long runs of combining marks.  REQUIRES: text is valid UTF-8.
std::string Normalize(NormalForm form, absl::string_view text);

}  // namespace switchyard::text
