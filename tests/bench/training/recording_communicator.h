// A communicator that keeps when each of its exchanges was under way: from its start until it had been waited for.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::bench {

struct TimeSpan {
  absl::Time begin, end;
};

// Threads: as for any Communicator.
class RecordingCommunicator : public comm::Communicator {
 public:
  explicit RecordingCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->group(), comm::MessagePool::Create()), inner_(std::move(inner)) {}

  void Abort(absl::string_view reason) override { inner_->Abort(reason); }
  absl::Status status() const override { return inner_->status(); }
  comm::WorkOr StartExchange(Exchange exchange) override;

  // The calls of class all_reduce since the last call, in the order in which they ended.
  std::vector<TimeSpan> TakeSums() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class RecordedWork;
  const std::unique_ptr<Communicator> inner_;
  absl::Mutex mu_;
  std::vector<TimeSpan> sums_ ABSL_GUARDED_BY(mu_);
};

// How long `spans` cover of `of`; they may overlap each other and lie in any order.
absl::Duration Covered(const TimeSpan& of, std::vector<TimeSpan> spans);

}  // namespace switchyard::bench
