// The key-value store through which a group's collectives find each other: write-once keys, one group at a time.
//
// A store is open under one token, drawn for each epoch and known to the members only; requests with another one are
// refused (a stranger, or a zombie of an earlier epoch).  Bounded: kMaxKeys keys, kMaxValueBytes each.
// Thread-safe; never blocks: Get calls back when the keys are there, or when its time is over (at the next Sweep).
#pragma once

#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard {

class GroupStore {
 public:
  using Values = absl::StatusOr<std::vector<std::string>>;
  static constexpr size_t kMaxKeys = 100000;
  static constexpr size_t kMaxKeyBytes = 1024;
  static constexpr size_t kMaxValueBytes = 1 << 20;

  // Drops everything and opens for `token`; whoever waits is told Aborted.
  void Open(const std::string& token);
  // AlreadyExists when the key was set to another value (a duplicate rank).
  absl::Status Set(const std::string& token, const std::string& key, std::string value);
  // `done` is called exactly once, on this or another thread.
  void Get(const std::string& token, std::vector<std::string> keys, absl::Time deadline,
           std::function<void(Values)> done);
  void Sweep(absl::Time now);

 private:
  struct Waiter {
    std::vector<std::string> keys;
    absl::Time deadline;
    std::function<void(Values)> done;
  };

  absl::Status CheckToken(const std::string& token) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Lookup(const std::vector<std::string>& keys, std::vector<std::string>* values) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard
