#include "scheduler/jobs/job_state.h"

#include <array>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace switchyard::jobs {
namespace {

constexpr std::array<absl::string_view, kNumJobStates> kStateNames = {
    "PENDING", "PREPARING", "RUNNING", "PAUSING", "PAUSED", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED"};
constexpr std::array<absl::string_view, kNumJobEvents> kEventNames = {"admit", "start", "pause",  "resume", "cancel",
                                                                      "stop",  "lose",  "finish", "fail",   "block"};

struct Transition {
  JobState from;
  JobEvent event;
  JobState to;
};

using enum JobState;
using enum JobEvent;

constexpr Transition kTransitions[] = {
    {kPending, kAdmit, kPreparing},
    {kPending, kPause, kPaused},
    {kPending, kCancel, kCancelled},
    {kPending, kFail, kFailed},

    {kPreparing, kStart, kRunning},
    {kPreparing, kPause, kPausing},
    {kPreparing, kCancel, kCancelling},
    {kPreparing, kLose, kPending},
    {kPreparing, kFail, kFailed},
    {kPreparing, kBlock, kPaused},

    {kRunning, kPause, kPausing},
    {kRunning, kCancel, kCancelling},
    {kRunning, kLose, kPending},
    {kRunning, kFinish, kSucceeded},
    {kRunning, kFail, kFailed},
    {kRunning, kBlock, kPaused},

    // The user's request holds, whatever becomes of the workers meanwhile.
    {kPausing, kStopped, kPaused},
    {kPausing, kLose, kPaused},
    {kPausing, kCancel, kCancelling},
    {kPausing, kFinish, kSucceeded},
    {kPausing, kFail, kFailed},
    {kPausing, kBlock, kPaused},

    {kPaused, kResume, kPending},
    {kPaused, kCancel, kCancelled},

    {kCancelling, kStopped, kCancelled},
    {kCancelling, kLose, kCancelled},
    {kCancelling, kFinish, kSucceeded},
    {kCancelling, kFail, kFailed},
    {kCancelling, kBlock, kCancelled},
};

}  // namespace

absl::string_view JobStateName(JobState state) { return kStateNames[static_cast<size_t>(state)]; }
absl::string_view JobEventName(JobEvent event) { return kEventNames[static_cast<size_t>(event)]; }

bool IsFinal(JobState state) { return state == kSucceeded || state == kFailed || state == kCancelled; }

absl::StatusOr<JobState> NextJobState(JobState state, JobEvent event) {
  for (const Transition& transition : kTransitions) {
    if (transition.from == state && transition.event == event) return transition.to;
  }
  return absl::FailedPreconditionError(absl::StrCat("job is ", JobStateName(state), ": cannot ", JobEventName(event)));
}

bool SaysNotFinite(const absl::Status& error) {
  return absl::IsDataLoss(error) && absl::StrContains(error.message(), kNotFinite);
}

}  // namespace switchyard::jobs
