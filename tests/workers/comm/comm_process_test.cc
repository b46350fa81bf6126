// Ranks as processes: one is killed in the middle of its exchanges; the survivors notice, and form the next epoch.
//
// Forks before anything has started a thread, so this test is a program of its own.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/gloo_communicator.h"

namespace switchyard {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> Form(int rank, int world, int64_t epoch, test::DirectoryStore* store) {
  return FormGlooGroup({.rank = rank,
                        .world = world,
                        .epoch = epoch,
                        .token = "secret",
                        .address = "127.0.0.1",
                        .deadline = test::Soon()},
                       store);
}

absl::Status Exchange(Communicator* comm, int64_t bytes) {
  std::vector<Message> out(comm->world());
  for (Message& message : out) message = comm->NewMessage(bytes);
  ASSIGN_OR_RETURN(auto work, comm->AllToAllV({.deadline = test::Soon()}, std::move(out)));
  return work->Wait();
}

// What a child does; its exit code says how it went.  Epoch 1 with three ranks until it breaks, epoch 2 with two.
int Survive(int rank, const std::string& directory) {
  test::DirectoryStore store(directory);
  {
    auto group = Form(rank, 3, 1, &store);
    if (!group.ok()) return 1;
    absl::Status status;
    for (int i = 0; status.ok() && i < 1'000'000; ++i) {
      status = Exchange(group->get(), i % 3 == 0 ? 300'000 : 500);
      if (rank == 2 && i == 20) kill(getpid(), SIGKILL);
    }
    if (status.code() != absl::StatusCode::kUnavailable) return 2;
    // The death was seen, not waited out.
    if ((*group)->status().code() != absl::StatusCode::kUnavailable) return 3;
  }
  auto group = Form(rank, 2, 2, &store);
  if (!group.ok()) return 4;
  for (int i = 0; i < 10; ++i) {
    if (!Exchange(group->get(), 1000).ok()) return 5;
  }
  return 0;
}

TEST(CommProcessTest, SurvivorsOfASigkillFormTheNextEpoch) {
  std::string directory = (std::filesystem::temp_directory_path() / "sy_comm_XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const absl::Time begin = absl::Now();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(Survive(rank, directory));
    children.push_back(pid);
  }
  for (int rank = 0; rank < 3; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    if (rank == 2) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      ASSERT_TRUE(WIFEXITED(status)) << "rank " << rank << " ended by signal " << WTERMSIG(status);
      EXPECT_EQ(WEXITSTATUS(status), 0) << "rank " << rank;
    }
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace switchyard
