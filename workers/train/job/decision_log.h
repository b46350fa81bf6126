// A file of a job's folder with decisions of its ranks that change bits.  Each is on the disk before any rank adopts
// it, so that a later attempt makes the same ones.
//
//   switchyard-packing version=1 attempt=7 decisions=2 crc32c=0a1b2c3d
//   a line for each decision
// crc32c covers the text before it in the line and all later lines.  The file is replaced as a whole.  Its writer holds
// the folder's lock (checkpoint_saver.h), and an attempt that a later one has followed is refused.  A new job with such
// a file in its folder, on as many ranks, decides as the file says, so a run can be repeated to the bit.  Blocks on the
// disk; errors name the file.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

inline constexpr int64_t kMaxDecisionLogBytes = int64_t{1} << 20;

struct DecisionLogKind {
  const char* file = "";    // "packing.log"
  const char* format = "";  // "switchyard-packing"
  const char* anew = "";    // what is decided anew if it is removed: "how experts are packed"
};

struct DecisionLog {
  int64_t attempt = 0;     // the attempt that wrote it
  std::string lines = {};  // each with its end
};

std::string EncodeDecisionLog(const DecisionLogKind& kind, const DecisionLog& log);
// "" is a log without decisions.  Errors: InvalidArgument for another kind of file; FailedPrecondition for another
// version; DataLoss for a damaged one.  Each says what follows from removing the file.
absl::StatusOr<DecisionLog> DecodeDecisionLog(const DecisionLogKind& kind, absl::string_view text);
// DataLoss: lines of a whole log that are no decisions.
absl::Status NoSuchDecisions(const DecisionLogKind& kind, absl::string_view problem);

// "" if there is none.
absl::StatusOr<std::string> ReadDecisionLog(checkpoint::FileSystem* files, const DecisionLogKind& kind);
// Durable once it has returned OK; after an error the old or the new one may be there.  Errors: the file system's;
// FailedPrecondition if a later attempt wrote the one that is there.
absl::Status WriteDecisionLog(checkpoint::FileSystem* files, const DecisionLogKind& kind, const DecisionLog& log);

}  // namespace switchyard::train
