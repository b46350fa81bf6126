// GPT-2's alphabet: every byte is a printable character, so that byte-level BPE works on text.  Printable Latin-1
// characters stand for themselves; the other 68 bytes, in order, for U+0100 and on (space -> U+0120, "Ġ").
// Pure functions; thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

void AppendByteLevel(absl::string_view bytes, std::string* out);

// The bytes that `token` spells, or the token's own bytes if one of its characters is not of the alphabet (an added
// token).  REQUIRES: valid UTF-8.
void AppendByteLevelDecoded(absl::string_view token, std::string* out);

// The byte of a byte fallback's token "<0xHH>", or -1.
int ByteOfToken(absl::string_view token);

}  // namespace switchyard::tokenizer
