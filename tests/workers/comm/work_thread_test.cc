// Sums of class layer_sum are finished beneath their callers.
#include "workers/comm/local/work_thread.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kWorld = 3;
constexpr int64_t kLong = 50'000;  // elements: a sum of two halves

class WorkThreadTest : public testing::TestWithParam<test::Backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, WorkThreadTest, testing::ValuesIn(test::kBackends),
                         [](const auto& i) { return test::BackendName(i.param); });

WorkOr StartSum(Communicator* comm, std::vector<float>* values, absl::Time deadline = test::Soon()) {
  return comm->AllReduceSum({.comm_class = CommClass::kLayerSum, .deadline = deadline},
                            TensorView(values->data(), DType::kF32, {static_cast<int64_t>(values->size())}));
}

absl::Status ExpectSum(const std::vector<float>& values, float sum) {
  for (const float value : values) {
    if (value != sum) return absl::DataLossError(absl::StrCat(value, " instead of ", sum));
  }
  return absl::OkStatus();
}

// Rank 0 waits for its sums when the others have theirs, which need its second halves.
absl::Status SumWithoutRank0(Communicator* comm, std::atomic<int>* done, absl::Notification* others_done) {
  std::vector<std::vector<float>> values(4, std::vector<float>(kLong, 1.0f));
  std::vector<std::unique_ptr<Work>> works;
  for (std::vector<float>& each : values) {
    ASSIGN_OR_RETURN(works.emplace_back(), StartSum(comm, &each));
  }
  if (comm->rank() == 0 && !others_done->WaitForNotificationWithDeadline(test::Soon())) {
    return absl::DeadlineExceededError("the others wait for rank 0");
  }
  for (size_t i = 0; i < works.size(); ++i) {
    RETURN_IF_ERROR(works[i]->Wait());
    RETURN_IF_ERROR(works[i]->Wait());  // again: the same
    RETURN_IF_ERROR(ExpectSum(values[i], static_cast<float>(comm->world())));
  }
  if (comm->rank() != 0 && ++*done == comm->world() - 1) others_done->Notify();
  return absl::OkStatus();
}

TEST_P(WorkThreadTest, BothHalvesEndWithoutTheCallersWait) {
  std::atomic<int> done = 0;
  absl::Notification others_done;
  test::ExpectRanksOk(GetParam(), kWorld,
                      [&](Communicator* comm) { return SumWithoutRank0(comm, &done, &others_done); });
}

TEST_P(WorkThreadTest, AlsoOnASplit) {
  std::atomic<int> done = 0;
  absl::Notification others_done;
  test::ExpectRanksOk(GetParam(), kWorld + 1, [&](Communicator* comm) -> absl::Status {
    ASSIGN_OR_RETURN(auto some, comm->Split(comm->rank() == 0 ? 1 : 0, comm->rank(), test::Soon()));
    if (comm->rank() == 0) return absl::OkStatus();
    return SumWithoutRank0(some.get(), &done, &others_done);
  });
}

TEST_P(WorkThreadTest, ItsThreadEndsWithTheCommunicator) {
  auto ranks = test::MakeGroup(GetParam(), kWorld);
  constexpr int kRounds = 5;
  const int threads = test::NumThreads();
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    for (int round = 0; round < kRounds; ++round) {
      ASSIGN_OR_RETURN(auto same, comm->Split(0, comm->rank(), test::Soon()));
      std::vector<float> values(kLong, 1.0f);
      ASSIGN_OR_RETURN(auto work, StartSum(same.get(), &values));
      RETURN_IF_ERROR(work->Wait());
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  // (The system may still count the ranks' threads, which have been joined.)
  EXPECT_LE(test::NumThreads(), threads + kWorld);
}

TEST_P(WorkThreadTest, ADeadlineEndsItAndTheGroup) {
  auto ranks = test::MakeGroup(GetParam(), kWorld);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    if (comm->rank() == 2) return absl::OkStatus();
    std::vector<float> values(kLong, 1.0f);
    ASSIGN_OR_RETURN(auto work, StartSum(comm, &values, absl::Now() + absl::Milliseconds(100)));
    const absl::Status status = work->Wait();
    EXPECT_EQ(work->Wait(), status);
    EXPECT_FALSE(comm->status().ok());
    EXPECT_EQ(StartSum(comm, &values).status(), comm->status());
    return status;
  });
  // (The other of ranks 0 and 1 may see that one's end first.)
  EXPECT_THAT(absl::StrCat(statuses[0].ToString(), statuses[1].ToString()),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"),
                    HasSubstr("rank 2 did not launch all_reduce_sum #0 of class layer_sum in time")));
}

TEST_P(WorkThreadTest, ADroppedSumEndsTheGroup) {
  auto ranks = test::MakeGroup(GetParam(), kWorld);
  const auto statuses = test::RunRanks(&ranks, [](Communicator* comm) -> absl::Status {
    std::vector<float> values(kLong, 1.0f), more(kLong, 1.0f);
    ASSIGN_OR_RETURN(auto work, StartSum(comm, &values));
    ASSIGN_OR_RETURN(auto next, StartSum(comm, &more));
    if (comm->rank() == 1) {
      work.reset();
      (void)next->Wait();  // it may have been done
      return comm->status();
    }
    ASSIGN_OR_RETURN(auto barrier, comm->Barrier({.comm_class = CommClass::kControl, .deadline = test::Soon()}));
    const absl::Status status = barrier->Wait();  // rank 1 does not come
    (void)work->Wait();
    (void)next->Wait();
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(ranks[1]->status().ToString(),
              HasSubstr("all_reduce_sum #0 of class layer_sum was dropped without a Wait"));
}

}  // namespace
}  // namespace switchyard::comm
