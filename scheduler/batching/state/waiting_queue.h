// The queue of sequences that hold no slot: new ones and preempted ones, by arrival.  Thread-compatible.  Borrows the
// sequences.  step_planner.h decides who leaves it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "scheduler/batching/batching_policy.h"
#include "scheduler/batching/sequence.h"

namespace switchyard::batching {

class WaitingQueue {
 public:
  void Push(Sequence* sequence);
  // REQUIRES: it is here.
  void Remove(Sequence* sequence);
  // The first suspect (Sequence::is_suspect); null: there is none.
  Sequence* FirstSuspect() const;
  // The first that arrived after `arrival`, 0 = of all; null: there is none.
  Sequence* After(uint64_t arrival) const;

  // Why the policy's bounds leave no room for a request of so many tokens; empty: there is room.
  std::string WhyFull(int64_t tokens, const BatchingPolicy& policy) const;

  bool empty() const { return by_arrival_.empty(); }
  int32_t size() const { return static_cast<int32_t>(by_arrival_.size()); }
  int32_t num_requests() const { return static_cast<int32_t>(choices_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  friend struct Invariants;  // of tests
  absl::btree_map<uint64_t, Sequence*> by_arrival_;
  absl::flat_hash_map<RequestId, int32_t> choices_;  // here, of each request that has some
  int64_t num_tokens_ = 0;
  int32_t num_suspects_ = 0;
};

}  // namespace switchyard::batching
