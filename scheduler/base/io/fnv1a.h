// FNV-1a with 64 bits: a short name for bytes, the same on every machine.  Finds accidents, not attacks.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace switchyard {

// `hash` continues an earlier one: Fnv1a("ab") == Fnv1a("b", Fnv1a("a")).
constexpr uint64_t Fnv1a(absl::string_view bytes, uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace switchyard
