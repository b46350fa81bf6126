// The agreement of workers of a group that take from the same memory: before any of them loads, each publishes what it
// still needs, and all workers of one pool (the machine, a control group) compare the same sum with what the pool has.
// So either all of them fit, or all report that they do not.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/tensor/machine_memory.h"

namespace switchyard::worker {

// The claim of one rank.
struct MemoryClaim {
  std::vector<MemoryPool> pools;  // that it takes from, as it sees them while nobody loads; one at least
  int64_t to_come = 0;            // bytes that it will take beside what it has: weights, slots, KV cache
  int64_t cache_bytes = 0;        // of its KV cache where it has one, taken or to come
  bool takes_rest = false;        // it takes of what is left once all claims are met
};

std::string EncodeClaim(const MemoryClaim& claim);
absl::StatusOr<MemoryClaim> DecodeClaim(absl::string_view text);  // InvalidArgument

// The memory that this rank may take, by the pool that leaves it the least.
struct MemoryBudget {
  int workers = 1;          // that share it, this one among them
  int64_t available = 0;    // bytes, for what all of them need
  std::string limit;        // what sets that, in words
  int64_t others_need = 0;  // bytes
  // The least over all shared pools of what is left for this rank's KV cache, in equal parts, once all claims are met.
  int64_t cache_room = std::numeric_limits<int64_t>::max();

  // The same for each rank that takes of the rest, before any cache.
  int64_t rest = std::numeric_limits<int64_t>::max();

  int64_t own_bytes() const { return available - others_need; }
  // For messages: where own_bytes comes from, and what to do; begins with ": ".
  std::string ToString() const;
};

// This rank's, of all ranks' claims.
MemoryBudget ShareMemory(int rank, absl::Span<const MemoryClaim> claims);

// Publishes in `store` that this rank has given back what it will not keep, and waits until the others have, too. Every
// rank calls it, before it looks at what is available; one that is alone needs no store.  Errors: the store's.
absl::Status AwaitUnloaded(int rank, int world, comm::RendezvousStore* store, absl::Time deadline);

// Publishes this rank's claim in `store`, waits for the others' and shares.  Every rank of the group calls it, before
// it loads; one that is alone needs no store.  Errors: the store's.
absl::StatusOr<MemoryBudget> AgreeOnMemory(int rank, int world, const MemoryClaim& mine, comm::RendezvousStore* store,
                                           absl::Time deadline);

}  // namespace switchyard::worker
