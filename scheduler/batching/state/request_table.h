// The table of requests that have not finished, with their deadlines; owns all sequences, each until Destroy, which may
// come after its request has finished: while plans in flight name it.  Thread-compatible; no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/batching/step.h"

namespace switchyard::batching {

// A request as the scheduler receives it: a prompt, and how many choices of which length it wants.
struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;      // `choice` is filled in by the scheduler; ignore_eos: leave stop_ids empty
  int32_t num_choices = 1;      // n; logprobs and experts of the prompt come with choice 0 only
  int32_t max_tokens = 1;       // outputs of each choice, >= 1; the context may end them earlier (kLength)
  absl::Time deadline = absl::InfiniteFuture();
  // What the outputs must be a text of; null: anything.  Shared: with other requests of that constraint.  All of a
  // scheduler's are run by its owner alone.
  std::shared_ptr<grammar::Automaton> constraint;
  std::vector<int32_t> end_ids;  // of stop_ids, those that may come only where a constraint is met (end of sequence)
  std::string cache_salt;        // tenants of different salts never share KV blocks
  int32_t adapter = 0;           // as SlotInit's; requests of different ones never share KV blocks
};

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
  // Destroys the finished sequences that plans in flight held.
  void DestroyFinished();

  // A request whose deadline has passed; none: nullopt.
  std::optional<RequestId> PastDeadline(absl::Time now) const;
  // The earliest; InfiniteFuture if there is none.
  absl::Time NextDeadline() const;
  // The recent mean time between requests that finish, within 50 ms … 10 s.
  absl::Duration RetryAfter() const;

 private:
  friend struct Invariants;  // of tests
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
