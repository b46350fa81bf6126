#include "scheduler/base/memory_share.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"

namespace switchyard {

int64_t MemoryShare::PartsOf(int64_t whole, int64_t part_bytes) const {
  SY_CHECK_GE(part_bytes, 1);
  // Percent times whole is exact for percents of few digits, where a share of one would round 7 % of 100 up to 8.
  if (percent > 0) return std::min(whole, static_cast<int64_t>(std::ceil(percent * static_cast<double>(whole) / 100)));
  return std::min(whole, bytes / part_bytes);
}

absl::StatusOr<MemoryShare> ParseMemoryShare(absl::string_view text) {
  MemoryShare out;
  if (absl::ConsumeSuffix(&text, "%")) {
    if (absl::SimpleAtod(text, &out.percent) && out.percent > 0 && out.percent <= 100) return out;
  } else {
    int64_t unit = 1;
    for (const auto& [suffix, bytes] : {std::pair("KiB", int64_t{1} << 10),
                                        {"MiB", int64_t{1} << 20},
                                        {"GiB", int64_t{1} << 30},
                                        {"TiB", int64_t{1} << 40}}) {
      if (!absl::ConsumeSuffix(&text, suffix)) continue;
      unit = bytes;
      break;
    }
    if (absl::SimpleAtoi(text, &out.bytes) && out.bytes >= 1 && out.bytes <= INT64_MAX / unit) {
      out.bytes *= unit;
      return out;
    }
  }
  return absl::InvalidArgumentError("must be a share within (0%, 100%], or bytes, at least 1, as 6000000000 or 6GiB");
}

}  // namespace switchyard
