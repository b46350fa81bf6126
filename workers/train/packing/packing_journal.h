// packing.log of a job's folder: the decisions about packing of experts.  Each is on the disk before any rank adopts
// it, so that a later attempt makes the same ones (scheduler/jobs/expert_packing.h).
//
//   switchyard-packing version=1 attempt=7 decisions=2 crc32c=0a1b2c3d
//   step=10 world=4 from=1 to=2 … why=
//   step=14 world=4 …
// crc32c covers the text before it in the line and all later lines.  The file is replaced as a whole.  Its writer holds
// the folder's lock (checkpoint_saver.h), and an attempt that a later one has followed is refused.  A new job with such
// a file in its folder, on as many ranks, packs as the file says, so a run can be repeated to the bit.  Blocks on the
// disk; errors name the file.
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
inline constexpr int64_t kMaxPackingJournalBytes = int64_t{1} << 20;

struct PackingJournal {
  int64_t attempt = 0;  // the attempt that wrote it
  std::vector<jobs::PackingDecision> decisions = {};
};

std::string EncodePackingJournal(const PackingJournal& journal);
// "" is a journal without decisions.  Errors: InvalidArgument for another kind of file; FailedPrecondition for another
// version; DataLoss for a damaged one.  Each says what follows from removing the file.
absl::StatusOr<PackingJournal> DecodePackingJournal(absl::string_view text);

// "" if there is none.
absl::StatusOr<std::string> ReadPackingJournal(checkpoint::FileSystem* files);
// Durable once it has returned OK; after an error the old or the new one may be there.  Errors: the file system's;
// FailedPrecondition if a later attempt wrote the one that is there.
absl::Status WritePackingJournal(checkpoint::FileSystem* files, const PackingJournal& journal);

}  // namespace switchyard::train
