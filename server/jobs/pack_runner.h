// Threads on which text becomes tokens, one for each piece of work, as it may take hours.  Thread-safe.  Callers bound
// how much runs at once.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/jobs/data_preparer.h"

namespace switchyard::server {

class PackRunner {
 public:
  using ProgressFn = std::function<void(int64_t done, int64_t total)>;
  using DoneFn = std::function<void(absl::StatusOr<PackedData>)>;

  // `preparer` is borrowed.
  explicit PackRunner(DataPreparer* preparer) : preparer_(preparer) {}
  ~PackRunner() { Stop(); }

  // Cancels what runs, and waits for it; its `done` is called.  What is started later is cancelled at once.
  void Stop();

  // Both are called on the work's thread; `done` once, last.  REQUIRES: of this key all work is done.
  void Start(const std::string& key, PackRequest request, ProgressFn progress, DoneFn done);
  // The same if fewer than `most` run whose key begins so.  False: nothing was started, nothing is called.
  [[nodiscard]] bool StartIfFewer(absl::string_view prefix, int most, const std::string& key, PackRequest request,
                                  ProgressFn progress, DoneFn done);
  // Its `done` follows, soon.  Nothing if there is none.
  void Cancel(const std::string& key);

 private:
  struct Work {
    std::atomic<bool> cancelled{false};
    std::atomic<bool> over{false};
    std::thread thread;
  };
  void Reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  DataPreparer* const preparer_;
  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::unique_ptr<Work>> work_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
