// Makes text that somebody else wrote fit to be shown in an error message.  Thread-safe (pure).
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace switchyard {

inline constexpr size_t kMaxQuotedBytes = 64;

// In quotes and escaped as in C, cut to 64 bytes: "é\n" becomes "\xc3\xa9\n", a long text ends in "...".
std::string Quote(absl::string_view text);

// At most `max_bytes` of `text` with everything but printable ASCII escaped, without quotes.
std::string Excerpt(absl::string_view text, size_t max_bytes = kMaxQuotedBytes);

}  // namespace switchyard
