// Bytes as people read them in messages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace switchyard {

// "512 MiB", rounded down.
inline std::string Mib(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace switchyard
