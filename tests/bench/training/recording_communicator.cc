#include "tests/bench/training/recording_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::bench {

class RecordingCommunicator::RecordedWork : public comm::Work {
 public:
  RecordedWork(RecordingCommunicator* owner, std::unique_ptr<comm::Work> inner)
      : owner_(owner), inner_(std::move(inner)), begin_(absl::Now()) {}

  absl::Status Wait() override {
    RETURN_IF_ERROR(inner_->Wait());
    if (ended_) return absl::OkStatus();
    ended_ = true;
    received_ = std::move(inner_->received());
    absl::MutexLock lock(&owner_->mu_);
    owner_->sums_.push_back({begin_, absl::Now()});
    return absl::OkStatus();
  }

 private:
  RecordingCommunicator* const owner_;
  const std::unique_ptr<comm::Work> inner_;
  const absl::Time begin_;
  bool ended_ = false;
};

comm::WorkOr RecordingCommunicator::StartExchange(Exchange exchange) {
  if (exchange.key.comm_class != comm::CommClass::kAllReduce) return inner_->StartExchange(std::move(exchange));
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work, inner_->StartExchange(std::move(exchange)));
  return std::make_unique<RecordedWork>(this, std::move(work));
}

std::vector<TimeSpan> RecordingCommunicator::TakeSums() {
  absl::MutexLock lock(&mu_);
  return std::exchange(sums_, {});
}

absl::Duration Covered(const TimeSpan& of, std::vector<TimeSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) { return a.begin < b.begin; });
  absl::Duration covered;
  absl::Time from = of.begin;
  for (const TimeSpan& span : spans) {
    const absl::Time begin = std::max(from, span.begin), end = std::min(of.end, span.end);
    if (end <= begin) continue;
    covered += end - begin;
    from = end;
  }
  return covered;
}

}  // namespace switchyard::bench
