// Masks of steps between the link, which brings them, and the runner, which awaits them where it samples.
//
// They may come before the step is started.  Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/batching/step.h"

namespace switchyard::model {

class MaskInbox {
 public:
  // More than a server has steps in flight; past it the oldest are dropped.
  static constexpr size_t kMostSteps = 4;

  // Never blocks.  Those of an epoch that was aborted are dropped.
  void Put(int64_t epoch, int64_t step, batching::RankMasks masks);
  // Returns that step's masks; those of earlier steps are dropped.  Blocks.  DeadlineExceeded: they did not come until
  // `deadline`; Aborted: the epoch has ended.
  absl::StatusOr<batching::RankMasks> Await(int64_t epoch, int64_t step, absl::Time deadline);
  // Ends waits for masks of that epoch and of those before, now and later.
  void Abort(int64_t epoch, const std::string& reason);
  // All epochs so far are forgotten: a new link.
  void ForgetEpochs();

 private:
  using Key = std::pair<int64_t, int64_t>;  // epoch, step

  absl::Mutex mu_;
  std::map<Key, batching::RankMasks> masks_ ABSL_GUARDED_BY(mu_);
  int64_t aborted_ ABSL_GUARDED_BY(mu_) = 0;  // epochs up to this one
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::model
