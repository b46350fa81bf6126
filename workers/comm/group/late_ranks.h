// Finds the ranks for which a device's collective waits, from the reports of all ranks.  Pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "workers/comm/group/peer_watch.h"

namespace switchyard::comm {

// reports[rank].pending was not done in time on `rank`.  Returns for every other rank whether it has launched it, has
// not reached it, is in another collective instead, disagrees about sizes, waits, too, or has finished; the ranks at
// fault come first: "rank 1 has not launched it (4 launched, the last was broadcast #0 of class control)".
// REQUIRES: something is pending on `rank`.
std::string WhoIsLate(absl::Span<const PeerReport> reports, int rank);

}  // namespace switchyard::comm
