#include "scheduler/jobs/comm_spec.h"

#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/pipeline/build_expert_parallel.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kNames[] = {"fair",      "fixed",      "ar_last", "priority", "priority_ticketed",
                                        "partition", "pipelining", "full",    "preempt"};
static_assert(std::size(kNames) == kNumCommModes);

constexpr absl::string_view kRules[] = {"mode", "model", "profile"};  // kFixed has its number

bool IsNumberOfChunks(int32_t chunks) { return chunks >= 1 && chunks <= pipeline::kMaxMicroBatches; }

}  // namespace

absl::string_view CommModeName(CommMode mode) { return kNames[static_cast<int>(mode)]; }

absl::StatusOr<CommMode> ParseCommMode(absl::string_view name) {
  for (int i = 0; i < kNumCommModes; ++i) {
    if (kNames[i] == name) return static_cast<CommMode>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)),
                                                 "\" is no mode; must be one of ", absl::StrJoin(kNames, ", ")));
}

std::string GranularityName(const Granularity& granularity) {
  if (granularity.rule == ChunkRule::kFixed) return absl::StrCat(granularity.chunks);
  return std::string(kRules[static_cast<int>(granularity.rule)]);
}

absl::StatusOr<Granularity> ParseGranularity(absl::string_view name) {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (kRules[i] == name) return Granularity{.rule = static_cast<ChunkRule>(i)};
  }
  Granularity fixed = {.rule = ChunkRule::kFixed};
  if (absl::SimpleAtoi(name, &fixed.chunks) && IsNumberOfChunks(fixed.chunks) && GranularityName(fixed) == name) {
    return fixed;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)),
                                                 "\" is no granularity; must be one of ", absl::StrJoin(kRules, ", "),
                                                 ", or a number of chunks in [1, ", pipeline::kMaxMicroBatches, "]"));
}

absl::Status CheckGranularity(const CommunicationSpec& spec) {
  const Granularity& granularity = spec.granularity;
  if (granularity.rule == ChunkRule::kFixed && !IsNumberOfChunks(granularity.chunks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(granularity.chunks, " chunks are outside [1, ", pipeline::kMaxMicroBatches, "]"));
  }
  if (granularity.decides() && spec.mode == CommMode::kFull) {
    return absl::InvalidArgumentError(absl::StrCat(GranularityName(granularity), " does not go with mode ",
                                                   CommModeName(spec.mode),
                                                   ", in which steps' times decide how experts are packed; mode or a "
                                                   "number of chunks does"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::jobs
