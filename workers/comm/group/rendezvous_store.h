// The store in which the ranks of a new group find each other: write-once keys, visible to ranks with the group's
// token.
//
// The worker's process implements it by RPC to the server; the in-memory one serves ranks in one process and tests.
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace switchyard::comm {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // AlreadyExists when the key is there (a second process claims the same rank).
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Blocks until all keys are there and returns their values.  DeadlineExceeded names a missing key; Cancelled after
  // CancelWaits.
  virtual absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) = 0;
  // Every present and later Get returns Cancelled with the reason: the group will not form.
  virtual void CancelWaits(absl::string_view reason) = 0;
  // OK, or Cancelled after CancelWaits: for callers that wait for something else meanwhile.  Does not block.
  virtual absl::Status Cancelled() = 0;
};

// Every rank of a group publishes its value under "WHAT/RANK" and receives all ranks' values, in their order.  Errors:
// the store's.
absl::StatusOr<std::vector<std::string>> ExchangeValues(RendezvousStore* store, absl::string_view what, int rank,
                                                        int world, absl::string_view value, absl::Time deadline);

class InMemoryStore : public RendezvousStore {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override;
  void CancelWaits(absl::string_view reason) override;
  absl::Status Cancelled() override;

 private:
  absl::Mutex mu_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  std::string cancelled_ ABSL_GUARDED_BY(mu_);
};

// The same store with a prefix before its keys, so that two groups of the same ranks do not share keys.
class PrefixStore : public RendezvousStore {
 public:
  // store: borrowed.
  PrefixStore(RendezvousStore* store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override;
  void CancelWaits(absl::string_view reason) override { store_->CancelWaits(reason); }
  absl::Status Cancelled() override { return store_->Cancelled(); }

 private:
  RendezvousStore* const store_;
  const std::string prefix_;
};

}  // namespace switchyard::comm
