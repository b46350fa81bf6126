// Runs calls of DataPreparer::Pack on a thread each, since one may take hours.  Thread-safe.  Callers limit how many
// run at once.
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

  // Cancels running work and waits for it; its `done` is called.  Work that is started later is cancelled at once.
  void Stop();

  // Starts work.  Both functions are called on its thread; `done` once, last.  REQUIRES: no work of this key is
  // running.
  void Start(const std::string& key, PackRequest request, ProgressFn progress, DoneFn done);
  // The same, if fewer than `most` works run whose keys begin with `prefix`.  Returns false if nothing was started.
  [[nodiscard]] bool StartIfFewer(absl::string_view prefix, int most, const std::string& key, PackRequest request,
                                  ProgressFn progress, DoneFn done);
  // Cancels the work of this key, if there is any; its `done` follows soon.
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
