#include "scheduler/jobs/comm_spec.h"

#include <algorithm>
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

constexpr absl::string_view kAuto = "auto", kTrials = "trials";

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
  return std::string(kAuto);
}

absl::StatusOr<Granularity> ParseGranularity(absl::string_view name) {
  if (name == kAuto) return Granularity();
  Granularity fixed = {.rule = ChunkRule::kFixed};
  if (absl::SimpleAtoi(name, &fixed.chunks) && IsNumberOfChunks(fixed.chunks) && GranularityName(fixed) == name) {
    return fixed;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)),
                                                 "\" is no granularity; must be ", kAuto,
                                                 " or a number of chunks in [1, ", pipeline::kMaxMicroBatches, "]"));
}

std::string PackingChoiceName(const PackingChoice& packing) {
  if (packing.rule == PackingRule::kFixed) return absl::StrCat(packing.replicas);
  return std::string(kTrials);
}

absl::StatusOr<PackingChoice> ParsePackingChoice(absl::string_view name) {
  if (name == kTrials) return PackingChoice{.rule = PackingRule::kTrials, .replicas = 0};
  PackingChoice fixed = {.rule = PackingRule::kFixed};
  const bool is_number = absl::SimpleAtoi(name, &fixed.replicas) && PackingChoiceName(fixed) == name;
  if (is_number && fixed.replicas >= 1 && fixed.replicas <= kMostPacking) return fixed;
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)),
                                                 "\" is no packing of experts; must be ", kTrials,
                                                 " or a number of replicas in [1, ", kMostPacking, "]"));
}

bool TriesPackings(const CommunicationSpec& spec) { return spec.packing.rule == PackingRule::kTrials; }

int32_t FirstPacking(const CommunicationSpec& spec) {
  return spec.packing.rule == PackingRule::kFixed ? spec.packing.replicas : 1;
}

absl::Status CheckPackingChoice(const CommunicationSpec& spec, int32_t ranks) {
  if (spec.packing.rule != PackingRule::kFixed) return absl::OkStatus();
  const int32_t replicas = spec.packing.replicas;
  if (replicas < 1 || replicas > kMostPacking) {
    return absl::InvalidArgumentError(
        absl::StrCat(replicas, " replicas of each expert are outside [1, ", kMostPacking, "]"));
  }
  if (ranks % replicas == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(replicas, " replicas of each expert do not divide ", ranks, " workers"));
}

bool DecidesChunks(const CommunicationSpec& spec) {
  return spec.granularity.rule == ChunkRule::kAuto && spec.mode == CommMode::kPreempt;
}

int64_t PieceBytesOf(double bytes_per_second) {
  if (bytes_per_second <= 0) return kMostPiece;
  return static_cast<int64_t>(
      std::clamp(kPieceSeconds * bytes_per_second, static_cast<double>(kLeastPiece), static_cast<double>(kMostPiece)));
}

absl::Status CheckGranularity(const CommunicationSpec& spec) {
  const Granularity& granularity = spec.granularity;
  if (granularity.rule == ChunkRule::kFixed && !IsNumberOfChunks(granularity.chunks)) {
    return absl::InvalidArgumentError(
        absl::StrCat(granularity.chunks, " chunks are outside [1, ", pipeline::kMaxMicroBatches, "]"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::jobs
