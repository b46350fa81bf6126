#include "workers/train/reduce/piece_bytes.h"

#include <algorithm>

#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/comm_spec.h"
#include "workers/comm/group/link_fit.h"

namespace switchyard::train {

constexpr double kStarts = 8;  // pieces go one at a time, in two rounds each

absl::StatusOr<int64_t> MeasurePieceBytes(comm::Communicator* comm, absl::Time deadline) {
  ASSIGN_OR_RETURN(const fleet::LinkFit links, comm::MeasureLinks(comm, deadline));
  const double in_starts = std::min(kStarts * links.start_seconds * links.bytes_per_second, 1.0 * jobs::kMostPiece);
  return std::max(jobs::PieceBytesOf(links.bytes_per_second), static_cast<int64_t>(in_starts));
}

}  // namespace switchyard::train
