// CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of storage formats.  It finds every change of up to 32 neighbouring
// bits and any other but for one in 2^32; it is no defence against forgery.  Pure; by SSE 4.2 where a machine has it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace switchyard {

// `crc` continues an earlier one: Crc32c("ab") == Crc32c("b", Crc32c("a")).
uint32_t Crc32c(absl::string_view bytes, uint32_t crc = 0);
// The same on machines without the instruction: for tests.
uint32_t Crc32cByTables(absl::string_view bytes, uint32_t crc = 0);

}  // namespace switchyard
