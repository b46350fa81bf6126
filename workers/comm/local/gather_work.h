// All-gather of small payloads in ceil(log2 R) rounds: each passes on what the rounds before have brought (Bruck et
// al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11),
// 1997, their concatenation).  Used by communicator.cc and communicator_views.cc alone.
//
// A rank sends as many bytes as by telling everybody directly, in log2 R messages for R - 1: less CPU time, which is
// what small messages cost; but the latencies of the rounds add up, and who is late is known only to those it sends to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// Up to this payload a rank, and from this many ranks on, an all-gather goes in rounds (README.md: measured).
inline constexpr int64_t kSmallGatherBytes = 4 << 10;
inline constexpr int kMinGatherWorld = 6;

// Whether an all-gather goes in rounds: a function of what all ranks agree on.  Not of class control: there it matters
// more to know at once who is missing.
bool GathersInRounds(const OpKey& key, int world);

// In one round a rank sends its own and the blocks of the ranks before it, `blocks` in all, to rank + distance, and
// receives as many from rank - distance.
struct GatherRound {
  int distance = 0;
  int blocks = 0;
};
std::vector<GatherRound> GatherRounds(int world);

// Wait leaves every rank's `mine` in received().  The first round is under way on return; the others are begun in Wait.
// `comm` must outlive the work.
WorkOr StartGather(Communicator* comm, const OpKey& key, absl::Time deadline, absl::Span<const char> mine);

}  // namespace switchyard::comm
