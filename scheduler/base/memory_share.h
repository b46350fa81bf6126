// Amounts of memory: what a flag says (a share of a whole, or bytes), and bytes in messages.  Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

struct MemoryShare {
  double percent = 0;  // in (0, 100]; 0: `bytes` says it
  int64_t bytes = 0;   // at least 1

  // How many parts of part_bytes each, of `whole` parts: at most all; a share is rounded up.
  int64_t PartsOf(int64_t whole, int64_t part_bytes) const;
  bool operator==(const MemoryShare& other) const = default;
};

// "512 MiB", rounded down.
inline std::string Mib(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

// The help of the flag --gpu_memory_fraction, which servers and workers have.
inline constexpr char kGpuMemoryFractionHelp[] =
    "part of a GPU's memory, (0, 1], that may be in use, whoever uses it, once a worker has taken its weights, scratch "
    "and KV cache; NCCL's buffers and CUDA graphs come later and need some of the rest";

// "25%", "12.5%", or bytes, "8000000000", "6GiB" (KiB to TiB).  InvalidArgument: anything else, with what it must be.
absl::StatusOr<MemoryShare> ParseMemoryShare(absl::string_view text);

}  // namespace switchyard
