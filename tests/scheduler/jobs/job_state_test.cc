#include "scheduler/jobs/job_state.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

using enum JobState;
using enum JobEvent;

// "RUNNING" of a way, or the error.
std::string Walk(const std::vector<JobEvent>& events, JobState state = kPending) {
  for (const JobEvent event : events) {
    const absl::StatusOr<JobState> next = NextJobState(state, event);
    if (!next.ok()) return std::string(next.status().message());
    state = *next;
  }
  return std::string(JobStateName(state));
}

TEST(JobStateTest, WaysThroughALife) {
  EXPECT_EQ(Walk({kAdmit, kStart, kFinish}), "SUCCEEDED");
  EXPECT_EQ(Walk({kAdmit, kStart, kPause, kStopped, kResume, kAdmit, kStart, kFinish}), "SUCCEEDED");
  EXPECT_EQ(Walk({kAdmit, kStart, kLose, kAdmit, kStart}), "RUNNING");
  EXPECT_EQ(Walk({kPause, kResume, kAdmit}), "PREPARING");
  EXPECT_EQ(Walk({kCancel}), "CANCELLED");
  EXPECT_EQ(Walk({kAdmit, kCancel, kStopped}), "CANCELLED");
  EXPECT_EQ(Walk({kAdmit, kFail}), "FAILED");
  EXPECT_EQ(Walk({kAdmit, kStart, kBlock}), "PAUSED");
  EXPECT_EQ(Walk({kAdmit, kBlock, kResume, kAdmit}), "PREPARING");
}

TEST(JobStateTest, WhatWasAskedForOutlivesTheWorkers) {
  EXPECT_EQ(Walk({kAdmit, kStart, kPause, kLose}), "PAUSED");
  EXPECT_EQ(Walk({kAdmit, kStart, kCancel, kLose}), "CANCELLED");
  EXPECT_EQ(Walk({kAdmit, kStart, kPause, kBlock}), "PAUSED");
  EXPECT_EQ(Walk({kAdmit, kStart, kCancel, kBlock}), "CANCELLED");
  EXPECT_EQ(Walk({kAdmit, kStart, kPause, kCancel, kStopped}), "CANCELLED");
}

TEST(JobStateTest, FinalStatesStay) {
  for (const JobState state : {kSucceeded, kFailed, kCancelled}) {
    EXPECT_TRUE(IsFinal(state));
    for (int event = 0; event < kNumJobEvents; ++event) {
      EXPECT_EQ(NextJobState(state, static_cast<JobEvent>(event)).status().code(),
                absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(JobStateTest, EveryOtherStateCanBeLeftAndIsReached) {
  std::vector<bool> reached(kNumJobStates);
  reached[static_cast<size_t>(kPending)] = true;
  for (int state = 0; state < kNumJobStates; ++state) {
    bool left = false;
    for (int event = 0; event < kNumJobEvents; ++event) {
      const auto next = NextJobState(static_cast<JobState>(state), static_cast<JobEvent>(event));
      if (!next.ok()) continue;
      left = true;
      EXPECT_NE(*next, static_cast<JobState>(state));
      reached[static_cast<size_t>(*next)] = true;
    }
    EXPECT_EQ(left, !IsFinal(static_cast<JobState>(state))) << JobStateName(static_cast<JobState>(state));
  }
  for (int state = 0; state < kNumJobStates; ++state) {
    EXPECT_TRUE(reached[state]) << JobStateName(static_cast<JobState>(state));
  }
}

// A user can always end a job that has not ended.
TEST(JobStateTest, EveryLivingJobCanBeCancelled) {
  for (int state = 0; state < kNumJobStates; ++state) {
    const auto each = static_cast<JobState>(state);
    if (IsFinal(each) || each == kCancelling) continue;
    EXPECT_TRUE(NextJobState(each, kCancel).ok()) << JobStateName(each);
  }
}

TEST(JobStateTest, SaysWhatCannotBe) {
  EXPECT_EQ(Walk({kAdmit, kStart, kFinish, kPause}), "job is SUCCEEDED: cannot pause");
  EXPECT_EQ(Walk({kResume}), "job is PENDING: cannot resume");
  EXPECT_EQ(Walk({kAdmit, kStart, kPause, kResume}), "job is PAUSING: cannot resume");
}

}  // namespace
}  // namespace switchyard::jobs
