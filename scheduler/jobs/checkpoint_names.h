// Names of checkpoints in a job's folder, which workers write and the server lists.  Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace switchyard::jobs {

inline constexpr char kCheckpointManifest[] = "MANIFEST.json";
inline constexpr char kLatestCheckpoint[] = "LATEST";
// A checkpoint with a file of this name stays until its job is deleted: another job began from it, or a server has it
// as its model.  Users may make one, too.
inline constexpr char kKeptCheckpoint[] = "KEEP";

// "reference-0123456789abcdef.bin", by the hash in a token file's header: what a job's reference says of its pairs
// (workers/train/preferences/reference_file.h).
inline std::string ReferenceFile(uint64_t contents) { return absl::StrFormat("reference-%016x.bin", contents); }
inline bool IsReferenceFile(absl::string_view name) {
  uint64_t contents = 0;
  return absl::ConsumePrefix(&name, "reference-") && absl::ConsumeSuffix(&name, ".bin") && name.size() == 16 &&
         absl::SimpleHexAtoi(name, &contents);
}

// "step-00001000"; at least eight digits.
inline std::string StepFolder(int64_t step) { return absl::StrFormat("step-%08d", step); }

// -1: not a step's folder, or one that is being written ("step-00001000.tmp-…").
inline int64_t StepOfFolder(absl::string_view name) {
  int64_t step = -1;
  if (!absl::StartsWith(name, "step-") || !absl::SimpleAtoi(name.substr(5), &step) || step < 0) return -1;
  return StepFolder(step) == name ? step : -1;
}

}  // namespace switchyard::jobs
