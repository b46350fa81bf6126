// All-gather of small payloads in ceil(log2 R) rounds: each passes on what the rounds before have brought (Bruck et
// al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8(11),
// 1997, their concatenation).  Used by communicator.cc and communicator_views.cc alone.
//
// A rank sends as many bytes as without rounds, in log2 R messages instead of R - 1.  Small messages cost CPU time,
// which becomes less; but the latencies of the rounds add up, and only the receivers of a late rank know that it is
// late.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// Up to this payload a rank, and from this many ranks on, an all-gather goes in rounds, as exchange_latency measured.
inline constexpr int64_t kSmallGatherBytes = 4 << 10;
inline constexpr int kMinGatherWorld = 6;

// Whether an all-gather goes in rounds: a function of values that are equal on all ranks.  Class control never does:
// there it matters more to know at once which ranks are missing.
bool GathersInRounds(const OpKey& key, int world);

// In one round a rank sends its own block and those of the ranks before it, `blocks` in all, to rank + distance, and
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
