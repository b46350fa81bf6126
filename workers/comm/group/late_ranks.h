// Who keeps a device's collective waiting, from what all ranks report.  Pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "workers/comm/group/peer_watch.h"

namespace switchyard::comm {

// reports[rank].pending was not done in time on `rank`.  Says of every other rank whether it has launched it, is still
// before it, is in another collective instead, disagrees about sizes, waits, too, or has finished: those at fault
// first, "rank 1 has not launched it (4 launched, the last was broadcast #0 of class control)".
// REQUIRES: something is pending on `rank`.
std::string WhoIsLate(absl::Span<const PeerReport> reports, int rank);

}  // namespace switchyard::comm
