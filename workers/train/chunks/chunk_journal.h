// chunks.log of a job's folder: the decision about the number of chunks (scheduler/jobs/chunk_decision.h) in a
// DecisionLog (decision_log.h, which says what holds of it).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/chunk_decision.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

inline constexpr char kChunkJournalName[] = "chunks.log";

struct ChunkJournal {
  int64_t attempt = 0;                               // the attempt that wrote it
  std::optional<jobs::ChunkDecision> decision = {};  // none: also where there are lines of a search in steps
};

// Errors: those of decision_log.h.
std::string EncodeChunkJournal(const ChunkJournal& journal);
absl::StatusOr<ChunkJournal> DecodeChunkJournal(absl::string_view text);
absl::StatusOr<std::string> ReadChunkJournal(checkpoint::FileSystem* files);
absl::Status WriteChunkJournal(checkpoint::FileSystem* files, const ChunkJournal& journal);

}  // namespace switchyard::train
