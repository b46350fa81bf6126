// The table of requests that have not finished, with their deadlines; owner of all sequences.
//
// A sequence lives until Destroy, which may be after its request has finished: while plans in flight name it.
// Thread-compatible; no clock.  Does not know where sequences run (running_sequences.h) or wait (waiting_queue.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "scheduler/batching/request.h"
#include "scheduler/batching/sequence.h"

namespace switchyard::batching {

class RequestTable {
 public:
  bool empty() const { return requests_.empty(); }
  bool Contains(RequestId id) const { return requests_.contains(id); }

  // Makes a sequence of each choice.  Returns them, in order; they stay here.  REQUIRES: no request of that id is here.
  const std::vector<Sequence*>& Add(const Request& request, const PrefixRoot& root, int32_t block_size, absl::Time now);

  // [n] null where a choice has finished; empty if the request has.  A copy, as who ends a choice changes the table.
  std::vector<Sequence*> Choices(RequestId id) const;
  // Choice 0 of the sequence's request; null: it has finished.  REQUIRES: the sequence has not.
  const Sequence* Leader(const Sequence& sequence) const { return requests_.at(sequence.request()).choices[0]; }

  // That choice has finished, and with the last one its request.
  void Finish(const Sequence& sequence, absl::Time now);
  void Destroy(const Sequence* sequence) { sequences_.erase(sequence); }
  // Those that plans in flight held.
  void DestroyFinished();

  // A request whose deadline has passed; none: nullopt.
  std::optional<RequestId> PastDeadline(absl::Time now) const;
  // The earliest; InfiniteFuture if there is none.
  absl::Time NextDeadline() const;
  // The recent mean time between requests that finish, within 50 ms … 10 s.
  absl::Duration RetryAfter() const;

  // In no order.
  std::vector<const Sequence*> Sequences() const;

 private:
  struct State {
    std::vector<Sequence*> choices;  // [n]; nullptr = finished
    int32_t num_unfinished = 0;
    absl::Time deadline = absl::InfiniteFuture();
  };

  uint64_t next_arrival_ = 1;
  absl::flat_hash_map<RequestId, State> requests_;
  absl::flat_hash_map<const Sequence*, std::unique_ptr<Sequence>> sequences_;
  absl::btree_set<std::pair<absl::Time, RequestId>> deadlines_;
  absl::Time last_finish_ = absl::InfinitePast();
  absl::Duration mean_finish_interval_ = absl::Seconds(1);
};

}  // namespace switchyard::batching
