// Key-value stores through which the members of a group find each other: write-once keys, one store for each group.
//
// A store is open under one token, drawn for each epoch and known only to the members; requests with another token
// (from a stranger, or a worker of an earlier epoch) are refused.  A store holds at most kMaxKeys keys of
// kMaxValueBytes each; there are as many stores as groups.  Thread-safe; never blocks: Get calls back when the keys
// exist, or at the first Sweep after its deadline.
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

namespace switchyard::server {

class GroupStore {
 public:
  using Values = absl::StatusOr<std::vector<std::string>>;
  static constexpr size_t kMaxKeys = 100000;
  static constexpr size_t kMaxKeyBytes = 1024;
  static constexpr size_t kMaxValueBytes = 1 << 20;

  // Opens an empty store for `token`.  Replaces an open one, whose waiting Get calls end with Aborted.  Does nothing
  // for "".
  void Open(const std::string& token);
  // Drops the store; Get calls that wait in it end with Aborted.
  void Close(const std::string& token);
  void CloseAll();
  // AlreadyExists if the key was set to another value (a duplicate rank).
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

  struct Store {
    std::map<std::string, std::string> values;
    std::list<Waiter> waiters;
  };

  absl::StatusOr<Store*> Find(const std::string& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void ReportOver(Store* store);
  static bool Lookup(const Store& store, const std::vector<std::string>& keys, std::vector<std::string>* values);

  absl::Mutex mu_;
  std::map<std::string, Store> stores_ ABSL_GUARDED_BY(mu_);  // by token
};

}  // namespace switchyard::server
