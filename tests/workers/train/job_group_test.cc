// The communicator of an attempt: its connections, whose traffic is counted, and attempts that end while they form.
#include "workers/train/job/job_group.h"

#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/group/group_forming.h"

namespace switchyard::train {
namespace {

comm::GroupOptions Options(int rank, int64_t epoch) {
  return {.rank = rank, .world = 2, .epoch = epoch, .token = "job", .address = "127.0.0.1", .deadline = test::Soon()};
}

// Forms a pair, exchanges once, and leaves.
void FormAndMeet(JobGroup* first, JobGroup* second, int64_t epoch) {
  comm::InMemoryStore store;
  const auto run = [&](JobGroup* group, int rank) -> absl::Status {
    comm::Communicator* comm = nullptr;
    ASSIGN_OR_RETURN(comm, group->Form(Options(rank, epoch), &store));
    EXPECT_EQ(comm->rank(), rank);
    ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::vector<comm::Message>(2)));
    return work->Wait();
  };
  auto other = std::async(std::launch::async, [&] { return run(second, 1); });
  const absl::Status status = run(first, 0);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(other.get().ok());
  first->Leave();
  second->Leave();
}

TEST(JobGroupTest, TrafficIsCountedOverAttempts) {
  std::vector<comm::SocketTraffic> traffic(2);
  JobGroup first(&traffic[0]), second(&traffic[1]);
  const auto frames = [&](size_t rank) {
    return traffic[rank].frames[static_cast<size_t>(comm::CommClass::kAllToAll)].load();
  };
  FormAndMeet(&first, &second, 1);
  EXPECT_EQ(frames(0), 1);
  EXPECT_EQ(frames(1), 1);
  FormAndMeet(&first, &second, 2);
  EXPECT_EQ(frames(0), 2);  // counted on
  EXPECT_EQ(frames(1), 2);
}

TEST(JobGroupTest, AnAttemptThatIsOverDoesNotForm) {
  comm::SocketTraffic traffic;
  JobGroup group(&traffic);
  comm::InMemoryStore store;
  auto forming = std::async(std::launch::async, [&] { return group.Form(Options(0, 5), &store).status(); });
  // Rank 0 has published itself, and waits for rank 1.
  ASSERT_TRUE(store.Get({absl::StrCat(comm::GroupPrefix(Options(0, 5)), "member/0")}, test::Soon()).ok());
  const absl::Time begin = absl::Now();
  group.Abort(5, "the server says so");
  EXPECT_EQ(forming.get().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_EQ(group.Form(Options(0, 5), &store).status().code(), absl::StatusCode::kAborted);
}

TEST(JobGroupTest, AbortFreesWhoWaits) {
  std::vector<comm::SocketTraffic> traffic(2);
  JobGroup first(&traffic[0]), second(&traffic[1]);
  comm::InMemoryStore store;
  auto other = std::async(std::launch::async, [&] { return second.Form(Options(1, 1), &store).status(); });
  const absl::StatusOr<comm::Communicator*> comm = first.Form(Options(0, 1), &store);
  ASSERT_TRUE(comm.ok()) << comm.status();
  ASSERT_TRUE(other.get().ok());
  auto work = (*comm)->AllToAllV({.deadline = test::Soon()}, std::vector<comm::Message>(2));
  ASSERT_TRUE(work.ok());
  auto wait = std::async(std::launch::async, [&] { return (*work)->Wait(); });
  first.Abort(1, "another attempt begins");
  EXPECT_EQ(wait.get(), absl::UnavailableError("aborted: another attempt begins"));
}

}  // namespace
}  // namespace switchyard::train
