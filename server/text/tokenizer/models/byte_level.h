// GPT-2's alphabet, which maps every byte to a printable character, so that byte-level BPE works on text.  Printable
// Latin-1 bytes map to themselves; the other 68 bytes map, in order, to U+0100 and on (space -> U+0120, "Ġ").  Pure
// functions; thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::tokenizer {

void AppendByteLevel(absl::string_view bytes, std::string* out);

// Appends the bytes that `token` spells, or the token's own bytes if one of its characters is not in the alphabet (an
// added token).  REQUIRES: valid UTF-8.
void AppendByteLevelDecoded(absl::string_view token, std::string* out);

// Returns the byte of a byte-fallback token "<0xHH>", or -1.
int ByteOfToken(absl::string_view token);

}  // namespace switchyard::tokenizer
