// Reports a worker's experts to the server now and then, in one session: estimators' figures, and where experts are.
//
// After a group's first step, then at most every kReportEvery, and only if steps were done since.  Used by the
// thread that runs the worker; has no clock of its own.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "scheduler/placement/per_step/expert_report.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {

inline constexpr absl::Duration kReportEvery = absl::Seconds(2);

// balancer: rank 0's, as it reports where experts are; null on other ranks, and where experts stay.
placement::ExpertReport ReportOf(const moe::RowLoadPredictor* load_predictor, const moe::PerStepBalancer* balancer);

class ReportHandler {
 public:
  using SendFn = absl::AnyInvocable<void(v1::ExpertReport)>;
  using TakeFn = absl::AnyInvocable<placement::ExpertReport()>;

  // take: returns the present report.
  ReportHandler(TakeFn take, SendFn send) : take_(std::move(take)), send_(std::move(send)) {}

  // The worker is in this group now; 0 = in none.
  void Enter(int64_t group_epoch);
  void StepDone() { unreported_ = group_epoch_ != 0; }
  // Sends what is due.
  void Poll(absl::Time now);
  // How long until a report is due.
  absl::Duration patience(absl::Time now) const;

 private:
  TakeFn take_;
  SendFn send_;
  int64_t group_epoch_ = 0;
  bool unreported_ = false;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace switchyard::worker
