// packing.log of a job's folder: the decisions about packing of experts (scheduler/jobs/expert_packing.h) in a
// DecisionLog (decision_log.h, which says what holds of it).
//
//   switchyard-packing version=1 attempt=7 decisions=2 crc32c=0a1b2c3d
//   step=10 world=4 from=1 to=2 … why=
//   step=14 world=4 …
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/expert_packing.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

inline constexpr char kPackingJournalName[] = "packing.log";

struct PackingJournal {
  int64_t attempt = 0;  // the attempt that wrote it
  std::vector<jobs::PackingDecision> decisions = {};
};

// Errors: those of decision_log.h.
std::string EncodePackingJournal(const PackingJournal& journal);
absl::StatusOr<PackingJournal> DecodePackingJournal(absl::string_view text);
absl::StatusOr<std::string> ReadPackingJournal(checkpoint::FileSystem* files);
absl::Status WritePackingJournal(checkpoint::FileSystem* files, const PackingJournal& journal);

}  // namespace switchyard::train
