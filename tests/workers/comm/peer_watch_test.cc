// Every rank knows what the others have launched, and learns at once who failed, left, died or froze.
#include "workers/comm/group/peer_watch.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using test::Soon;
using testing::HasSubstr;

// One rank: its reports, and the end that it was notified of.
struct Rank {
  absl::Mutex mu;
  PeerReport report ABSL_GUARDED_BY(mu);
  std::vector<absl::Status> reported ABSL_GUARDED_BY(mu);
  std::unique_ptr<PeerWatch> watch;

  void Start(std::unique_ptr<Communicator> comm, const PeerWatchOptions& options) {
    watch = std::make_unique<PeerWatch>(
        std::move(comm), options,
        [this] {
          absl::MutexLock lock(&mu);
          return report;
        },
        [this](const absl::Status& status) {
          absl::MutexLock lock(&mu);
          reported.push_back(status);
        });
    watch->Start();
  }
  std::string AwaitWord() {
    const auto has_word = [this] {
      mu.AssertReaderHeld();
      return !reported.empty();
    };
    absl::MutexLock lock(&mu);
    if (!mu.AwaitWithDeadline(absl::Condition(&has_word), test::Soon())) return "(nothing)";
    return reported.front().ToString();
  }
  size_t NumReported() {
    absl::MutexLock lock(&mu);
    return reported.size();
  }
};

class PeerWatchTest : public testing::TestWithParam<test::Backend> {
 protected:
  void Start(int world, const PeerWatchOptions& options = {}) {
    comms_ = test::MakeGroup(GetParam(), world);
    for (int r = 0; r < world; ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      if (r != frozen_) ranks_[r]->Start(std::move(comms_[r]), options);
    }
  }
  Rank& rank(int r) { return *ranks_[r]; }

  int frozen_ = -1;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

INSTANTIATE_TEST_SUITE_P(Backends, PeerWatchTest, testing::ValuesIn(test::kBackends),
                         [](const auto& i) { return test::BackendName(i.param); });

TEST_P(PeerWatchTest, ReportsReachEverybody) {
  Start(3);
  const OpKey pending{.op = CommOp::kAllToAllSized, .comm_class = CommClass::kAllToAll, .sequence = 6};
  for (int r = 0; r < 3; ++r) {
    absl::MutexLock lock(&rank(r).mu);
    rank(r).report = {.launched = 7 + r, .completed = 6, .last = pending, .pending = pending};
    if (r == 1) rank(r).report.send_bytes = {1, 2, 3};
    if (r == 1) rank(r).report.recv_bytes = {4, 5, int64_t{6} << 40};
  }
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(rank(r).watch->AwaitFresh(test::Soon()));
    const std::vector<PeerReport> reports = rank(r).watch->Latest();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(reports[peer].launched, 7 + peer);
      EXPECT_EQ(reports[peer].completed, 6);
      EXPECT_EQ(reports[peer].last, pending);
      EXPECT_EQ(reports[peer].pending, pending);
      EXPECT_EQ(reports[peer].send_bytes.size(), peer == 1 ? 3u : 0u);
    }
    EXPECT_THAT(reports[1].send_bytes, testing::ElementsAre(1, 2, 3));
    EXPECT_THAT(reports[1].recv_bytes, testing::ElementsAre(4, 5, int64_t{6} << 40));
  }
}

TEST_P(PeerWatchTest, AFailureIsReportedWithItsReasonAndOnlyOnce) {
  for (int failing = 0; failing < 3; ++failing) {
    ranks_.clear();
    Start(3);
    const absl::Time begin = absl::Now();
    rank(failing).watch->Fail(absl::StrCat("device of ", failing, " fell off the bus", std::string(2000, '.')));
    for (int r = 0; r < 3; ++r) {
      if (r == failing) continue;
      EXPECT_THAT(rank(r).AwaitWord(),
                  HasSubstr(absl::StrCat("UNAVAILABLE: rank ", failing, " ended the group: device of ", failing)));
    }
    EXPECT_LT(absl::Now() - begin, absl::Seconds(3));
    for (int r = 0; r < 3; ++r) rank(r).watch.reset();
    for (int r = 0; r < 3; ++r) EXPECT_EQ(rank(r).NumReported(), r == failing ? 0u : 1u);
  }
}

TEST_P(PeerWatchTest, WhoLeavesIsKnownAndNoFailure) {
  Start(3);
  rank(2).watch.reset();
  for (int r = 0; r < 2; ++r) {
    const absl::Time patience = test::Soon();
    while (rank(r).watch->left() < 0 && absl::Now() < patience) {
      rank(r).watch->AwaitFresh(absl::Now() + absl::Milliseconds(1));
    }
    EXPECT_EQ(rank(r).watch->left(), 2);
    EXPECT_EQ(rank(r).NumReported(), 0u);
  }
}

TEST_P(PeerWatchTest, AllLeaveAtOnce) {
  Start(4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) threads.emplace_back([&, r] { rank(r).watch->Leave(); });
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < 4; ++r) EXPECT_EQ(rank(r).NumReported(), 0u);
}

TEST_P(PeerWatchTest, AFrozenRankIsNamed) {
  frozen_ = 1;  // has its connections, and says nothing
  Start(3, {.timeout = absl::Milliseconds(200)});
  for (const int r : {0, 2}) EXPECT_THAT(rank(r).AwaitWord(), HasSubstr("UNAVAILABLE: a peer does not answer: "));
  EXPECT_THAT(rank(0).AwaitWord() + rank(2).AwaitWord(), HasSubstr("rank 1 did not launch all_gather"));
}

TEST_P(PeerWatchTest, WhoSaysNothingIsKnownWhenAsked) {
  frozen_ = 1;
  Start(3);
  for (const int r : {0, 2}) {
    EXPECT_THAT(rank(r).watch->Silent(absl::Now() + absl::Seconds(1)), testing::ElementsAre(1));
    EXPECT_EQ(rank(r).NumReported(), 0u);  // no end by itself
  }
}

// Another rank gives up, and its connections close.
TEST_P(PeerWatchTest, WhoSaysNothingIsKnownWhenOthersAreGone) {
  frozen_ = 1;
  Start(3);
  EXPECT_THAT(rank(0).watch->Silent(absl::Now() + absl::Seconds(1)), testing::ElementsAre(1));
  rank(2).watch->Fail("tired of waiting");
  rank(2).watch.reset();
  EXPECT_THAT(rank(0).watch->Silent(absl::Now() + absl::Seconds(1)), testing::ElementsAre(1));
}

TEST_P(PeerWatchTest, WhoAnswersIsNotSilent) {
  Start(3);
  const absl::Time begin = absl::Now();
  for (int r = 0; r < 3; ++r) EXPECT_THAT(rank(r).watch->Silent(test::Soon()), testing::IsEmpty());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_P(PeerWatchTest, ARankWhoseProcessEndsIsNamed) {
  frozen_ = 1;
  Start(2);
  comms_[1].reset();  // as the kernel closes a dead process's connections
  EXPECT_THAT(rank(0).AwaitWord(), HasSubstr("rank 1 is gone"));
}

}  // namespace
}  // namespace switchyard::comm
