// How workers of a group that take from the same memory share it: before any of them loads, each says what it still
// needs, and all of those of one memory compare the same sum with what there is.  So either all of them fit, or all say
// that they do not.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/rendezvous_store.h"
#include "workers/machine_memory.h"

namespace switchyard {

// One rank's word.
struct MemoryClaim {
  std::string domain;       // MachineMemory's; empty: it shares with nobody
  int64_t available = 0;    // bytes, as this rank sees it while nobody loads
  std::string limit;        // what sets that, in words
  int64_t to_come = 0;      // bytes that it will take beside what it has: weights, slots, KV cache
  int64_t cache_bytes = 0;  // of its KV cache where it has one, taken or to come
};

MemoryClaim ClaimOf(const MachineMemory& memory);
std::string EncodeClaim(const MemoryClaim& claim);
absl::StatusOr<MemoryClaim> DecodeClaim(absl::string_view text);  // InvalidArgument

struct MemoryBudget {
  int workers = 1;              // that share, this one among them
  int64_t available = 0;        // bytes, for what all of them need
  std::string limit;            // what sets that, in words
  int64_t others_need = 0;      // bytes
  int64_t room_for_caches = 0;  // bytes that are left once all have what they claim, but for KV caches

  int64_t own_bytes() const { return available - others_need; }
  // For messages: where own_bytes comes from, and what to do; begins with ": ".
  std::string ToString() const;
};

// This rank's, of all ranks' claims.
MemoryBudget ShareMemory(int rank, absl::Span<const MemoryClaim> claims);

// Tells `store` this rank's claim, waits for the others' and shares.  Every rank of the group calls it, before it
// loads; one that is alone needs no store.  Errors: the store's.
absl::StatusOr<MemoryBudget> AgreeOnMemory(int rank, int world, const MemoryClaim& mine, RendezvousStore* store,
                                           absl::Time deadline);

}  // namespace switchyard
