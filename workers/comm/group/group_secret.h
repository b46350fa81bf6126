// What a group's ranks derive from its secret (GroupOptions::token), so that the secret itself never travels between
// them: HMAC-SHA256 under the secret, with a label for each use.  No state; thread-safe.
//
// REQUIRES of every use: a secret that cannot be guessed, as the server draws them (128 bits), since whoever listens
// sees values by which guesses can be tried.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace switchyard::comm {

using Digest = std::array<char, 32>;

inline absl::string_view BytesOf(const Digest& digest) { return {digest.data(), digest.size()}; }

// HMAC-SHA256 of label and message.  `label` has no NUL: one ends it.
Digest DigestUnder(const std::string& secret, absl::string_view label, absl::string_view message);
// Names the group in every frame and in the store's keys.  Public.
uint64_t GroupTag(const std::string& secret);
// Key of the group's encrypted links.
Digest LinkKey(const std::string& secret);
// 32 bytes of the kernel's random generator, never used before.
Digest DrawNonce();

}  // namespace switchyard::comm
