// The second half of reductions: adds what was received, in rank order.  Used by communicator.cc and
// part_collectives.cc alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

// An all-reduce in which a rank sends no more bytes than this sends every rank's values to every rank: one latency
// instead of two.
inline constexpr int64_t kSmallReduceBytes = 64 << 10;

// Elements [begin, begin + count) of n belong to rank r.
struct PartOfRank {
  int64_t begin = 0;
  int64_t count = 0;
};
inline PartOfRank PartOf(int64_t n, int rank, int world) {
  const int64_t begin = n * rank / world;
  return {begin, n * (rank + 1) / world - begin};
}

int64_t BytesOfPieces(const std::vector<TensorView>& pieces);

// `exchange` brings every rank's contribution to `pieces`, one after another; Wait leaves their sum in them.  `comm`
// must outlive the work.
std::unique_ptr<Work> MakeReduceScatterWork(Communicator* comm, std::unique_ptr<Work> exchange,
                                            std::vector<TensorView> pieces);

// `parts` brings every rank's contribution to this rank's part of `values`; Wait sums it and gathers the parts under
// `key`.  (work_thread.h calls it where nobody else would in time.)
std::unique_ptr<Work> MakeAllReduceWork(Communicator* comm, std::unique_ptr<Work> parts, const OpKey& key,
                                        absl::Time deadline, const TensorView& values);

}  // namespace switchyard::comm
