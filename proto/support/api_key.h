// API keys: what a client presents, and the hash by which a server knows it.
//
// A key has 256 random bits, so a plain SHA-256 of it is safe to keep: nobody can try all keys.  No function here shows
// a key in an error.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace switchyard::rpc {

inline constexpr char kAuthorization[] = "authorization";  // the metadata that carries a key: "Bearer KEY"
inline constexpr char kBearer[] = "Bearer ";
inline constexpr size_t kKeyDigestBytes = 32;

// Draws a key from the kernel's random generator: "sy-" and 64 hex digits.
std::string DrawApiKey();

// Returns the SHA-256 of the key, kKeyDigestBytes bytes.
std::string DigestOfKey(absl::string_view key);

// INVALID_ARGUMENT if the key cannot be sent as metadata: empty, above 1000 bytes, or not printable ASCII without
// spaces.
absl::Status CheckKeyText(absl::string_view key);

}  // namespace switchyard::rpc
