// Forming a group, also with strangers, duplicates and missing ranks.
#include <future>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/core/frame_header.h"
#include "workers/comm/core/launch_ledger.h"

namespace switchyard::comm {
namespace {

using test::Backend;
using testing::HasSubstr;

TEST(CheckGroupAddressTest, LoopbackAndPrivateOnly) {
  for (const char* good : {"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1",
                           "100.64.0.1", "100.127.255.254", "::1", "fd00::1"}) {
    EXPECT_TRUE(CheckGroupAddress(good).ok()) << good;
  }
  for (const char* bad : {"0.0.0.0", "::", "8.8.8.8", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2001:db8::1",
                          "localhost", "", "127.0.0.1:80"}) {
    EXPECT_EQ(CheckGroupAddress(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

class RendezvousTest : public testing::TestWithParam<test::Backend> {
 protected:
  static absl::StatusOr<std::unique_ptr<Communicator>> Form(const GroupOptions& options, RendezvousStore* store) {
    return test::FormGroup(GetParam(), options, store);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RendezvousTest,
                         testing::Values(test::Backend::kSocket, test::Backend::kOvertaking, test::Backend::kEncrypted),
                         [](const auto& i) { return test::BackendName(i.param); });

TEST_P(RendezvousTest, OptionsAreChecked) {
  InMemoryStore store;
  EXPECT_EQ(Form(test::FormingOptions(2, 2), &store).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Form(test::FormingOptions(-1, 2), &store).status().code(), absl::StatusCode::kInvalidArgument);
  GroupOptions wildcard = test::FormingOptions(0, 2);
  wildcard.address = "0.0.0.0";
  const absl::Status status = Form(wildcard, &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("neither loopback nor private"));
}

TEST_P(RendezvousTest, ADuplicateRankFailsAtOnceAndHarmsNobody) {
  InMemoryStore store;
  auto first = std::async(std::launch::async, [&] { return Form(test::FormingOptions(0, 2), &store); });
  auto second = std::async(std::launch::async, [&] { return Form(test::FormingOptions(0, 2), &store); });
  auto other = Form(test::FormingOptions(1, 2), &store);
  auto a = first.get();
  auto b = second.get();
  EXPECT_TRUE(other.ok()) << other.status();
  EXPECT_NE(a.ok(), b.ok());  // one of the two won
  const absl::Status twin = a.ok() ? b.status() : a.status();
  EXPECT_EQ(twin.code(), absl::StatusCode::kAlreadyExists) << twin;
  EXPECT_THAT(std::string(twin.message()), HasSubstr("rank 0 of epoch 7 is taken"));
}

TEST_P(RendezvousTest, AnotherWorldSizeFailsFast) {
  InMemoryStore store;
  const absl::Time begin = absl::Now();
  auto two = std::async(std::launch::async, [&] { return Form(test::FormingOptions(0, 2), &store).status(); });
  const absl::Status three = Form(test::FormingOptions(1, 3), &store).status();
  EXPECT_EQ(three.code(), absl::StatusCode::kFailedPrecondition) << three;
  EXPECT_THAT(std::string(three.message()), HasSubstr("rank 0 joined a world of 2, rank 1 a world of 3"));
  EXPECT_EQ(two.get().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_P(RendezvousTest, TheMissingRankIsNamed) {
  InMemoryStore store;
  const absl::Status status = Form(test::FormingOptions(0, 2, absl::Milliseconds(100)), &store).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 of 2 did not join epoch 7"));
}

TEST_P(RendezvousTest, AnotherTokenNeverMeets) {
  InMemoryStore store;
  GroupOptions stranger = test::FormingOptions(1, 2, absl::Milliseconds(200));
  stranger.token = "guess";
  auto wait = std::async(std::launch::async,
                         [&] { return Form(test::FormingOptions(0, 2, absl::Milliseconds(200)), &store).status(); });
  EXPECT_EQ(Form(stranger, &store).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(wait.get().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(RendezvousTest, CancelWaitsEndsTheForming) {
  InMemoryStore store;
  auto wait = std::async(std::launch::async, [&] { return Form(test::FormingOptions(0, 2), &store).status(); });
  store.CancelWaits("rank 1 died while loading");
  const absl::Status status = wait.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 died while loading"));
}

// One rank's view of the shared store, with cancellations of its own.
class ViewOfStore : public RendezvousStore {
 public:
  explicit ViewOfStore(RendezvousStore* shared) : shared_(shared) {}
  absl::Status Set(absl::string_view key, absl::string_view value) override { return shared_->Set(key, value); }
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override {
    return shared_->Get(keys, deadline);
  }
  void CancelWaits(absl::string_view reason) override { own_.CancelWaits(reason); }
  // Waits under way in the shared store go on: a cancellation reaches this view alone.
  absl::Status Cancelled() override { return own_.Cancelled(); }

 private:
  RendezvousStore* const shared_;
  InMemoryStore own_;
};

// A rank that stops (as by SIGSTOP) when it is about to learn where another one listens: its own sockets are there, and
// the kernel accepts for them.
class StoppingRank : public ViewOfStore {
 public:
  using ViewOfStore::ViewOfStore;
  absl::StatusOr<std::vector<std::string>> Get(absl::Span<const std::string> keys, absl::Time deadline) override {
    if (keys[0].find("/member/") != std::string::npos || !absl::EndsWith(keys[0], "/0")) {
      return ViewOfStore::Get(keys, deadline);
    }
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    mu_.Await(absl::Condition(&over_));
    return absl::CancelledError("the test is over");
  }
  void AwaitStop() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&stopped_));
  }
  void End() {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }

 private:
  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

// Which end of a pair connects is up to the ports, so each of several rounds may wait for a connection (that the peer
// does not make) or for the peer's hello (over one that its kernel took).
TEST_P(RendezvousTest, CancelWaitsEndsTheFormingAlsoWhileItConnects) {
  const int fds = test::OpenFds(), threads = test::NumThreads();
  for (int round = 0; round < 8; ++round) {
    InMemoryStore shared;
    ViewOfStore own(&shared);
    StoppingRank peer(&shared);
    auto stopped = std::async(std::launch::async, [&] { return Form(test::FormingOptions(1, 2), &peer).status(); });
    auto wait = std::async(std::launch::async, [&] { return Form(test::FormingOptions(0, 2), &own).status(); });
    peer.AwaitStop();
    const absl::Time begin = absl::Now();
    own.CancelWaits("rank 1 stopped");
    const absl::Status status = wait.get();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 stopped"));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "not the deadline's 20 s";
    peer.End();
    EXPECT_FALSE(stopped.get().ok());
    if (HasFailure()) return;
  }
  EXPECT_EQ(test::OpenFds(), fds);
  EXPECT_EQ(test::NumThreads(), threads);
}

TEST(FrameHeaderTest, StrangersAndMismatchesAreDistinguished) {
  const GroupId me{.epoch = 3, .token = 42, .rank = 0, .world = 2};
  GroupId peer = me;
  peer.rank = 1;
  const OpKey key{.op = CommOp::kAllGather, .comm_class = CommClass::kControl, .sequence = 5, .bytes = 8};
  const auto code = [&](const FrameHeader& header) { return CheckFrameHeader(header, me, 1, key, 0).code(); };
  const FrameHeader good = MakeFrameHeader(peer, key, 0, 8);
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  FrameHeader bad = good;
  bad.magic = 0;
  EXPECT_EQ(code(bad), absl::StatusCode::kFailedPrecondition);
  bad = good;
  bad.token = 1;
  EXPECT_EQ(code(bad), absl::StatusCode::kFailedPrecondition);
  bad = good;
  bad.epoch = 2;
  EXPECT_EQ(code(bad), absl::StatusCode::kFailedPrecondition);
  bad = good;
  bad.source = 0;
  EXPECT_EQ(code(bad), absl::StatusCode::kFailedPrecondition);
  bad = good;
  bad.sequence = 6;
  EXPECT_EQ(code(bad), absl::StatusCode::kInternal);
  bad = good;
  bad.payload_bytes = int64_t{1} << 60;
  EXPECT_EQ(code(bad), absl::StatusCode::kInternal);
  bad = good;
  bad.tag = 1;
  EXPECT_EQ(code(bad), absl::StatusCode::kInternal);
  bad = good;
  bad.split = 1;
  EXPECT_EQ(code(bad), absl::StatusCode::kInternal);
}

TEST(LaunchLedgerTest, OrderWithinAClassMattersOrderBetweenClassesDoesNot) {
  const OpKey a{.op = CommOp::kAllToAllV, .comm_class = CommClass::kAllToAll, .sequence = 0};
  const OpKey b{.op = CommOp::kAllGather, .comm_class = CommClass::kAllToAll, .sequence = 1, .bytes = 8};
  const OpKey c{.op = CommOp::kBarrier, .comm_class = CommClass::kControl, .sequence = 0, .bytes = 0};
  LaunchLedger abc, cab, bac;
  for (const OpKey& key : {a, b, c}) abc.Record(key);
  for (const OpKey& key : {c, a, b}) cab.Record(key);
  for (const OpKey& key : {b, a, c}) bac.Record(key);
  EXPECT_EQ(abc.hash(), cab.hash());
  EXPECT_NE(abc.hash(), bac.hash());
}

}  // namespace
}  // namespace switchyard::comm
