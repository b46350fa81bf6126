// Forming a group: who may join, and what strangers, doubles and absentees do.
#include <algorithm>
#include <fstream>
#include <future>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/frame_header.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/comm/launch_ledger.h"

namespace switchyard {
namespace {

using test::Backend;
using testing::AllOf;
using testing::HasSubstr;

TEST(CheckGroupAddressTest, LoopbackAndPrivateOnly) {
  for (const char* good :
       {"127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1", "::1", "fd00::1"}) {
    EXPECT_TRUE(CheckGroupAddress(good).ok()) << good;
  }
  for (const char* bad : {"0.0.0.0", "::", "8.8.8.8", "172.32.0.1", "2001:db8::1", "localhost", "", "127.0.0.1:80"}) {
    EXPECT_EQ(CheckGroupAddress(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

class RendezvousTest : public testing::TestWithParam<Backend> {
 protected:
  static absl::StatusOr<std::unique_ptr<Communicator>> Form(const GroupOptions& options, RendezvousStore* store) {
    return test::FormGroup(GetParam(), options, store);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RendezvousTest, testing::Values(Backend::kGloo, Backend::kSocket),
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

// The ports on which this process listens on loopback.
std::vector<int> ListeningPorts() {
  std::vector<int> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state;
    fields >> slot >> local >> remote >> state;
    if (state == "0A" && local.rfind("0100007F:", 0) == 0)
      ports.push_back(static_cast<int>(std::stoul(local.substr(9), nullptr, 16)));
  }
  return ports;
}

// A store that lets a stranger connect to every port that a rank has just opened, before its peers learn of them.
class InvadedStore : public InMemoryStore {
 public:
  explicit InvadedStore(std::vector<int> known) : known_(std::move(known)) {}
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    if (key.find("/all_to_all/") != absl::string_view::npos) Invade();
    return InMemoryStore::Set(key, value);
  }
  bool invaded() const {
    absl::MutexLock lock(&mu_);
    return !strangers_.empty();
  }

 private:
  void Invade() {
    for (const int port : ListeningPorts()) {
      if (std::find(known_.begin(), known_.end(), port) != known_.end()) continue;
      test::Stranger stranger(
          port, "GET / HTTP/1.1\r\nHost: example\r\n\r\nand some more bytes to fill what a preamble may be\r\n");
      absl::MutexLock lock(&mu_);
      strangers_.push_back(std::move(stranger));
    }
  }
  const std::vector<int> known_;
  mutable absl::Mutex mu_;  // both ranks connect at the same time
  std::vector<test::Stranger> strangers_ ABSL_GUARDED_BY(mu_);
};

TEST(GlooRendezvousTest, AStrangerOnThePortFailsTheStartAndTheNextEpochForms) {
  {
    InvadedStore store(ListeningPorts());
    auto wait = std::async(std::launch::async, [&] {
      return FormGlooGroup(test::FormingOptions(0, 2, absl::Seconds(3)), &store).status();
    });
    const absl::Status status = FormGlooGroup(test::FormingOptions(1, 2, absl::Seconds(3)), &store).status();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(wait.get().ok());
    EXPECT_TRUE(store.invaded());
  }
  InMemoryStore store;
  auto wait = std::async(std::launch::async, [&] { return FormGlooGroup(test::FormingOptions(0, 2), &store); });
  EXPECT_TRUE(FormGlooGroup(test::FormingOptions(1, 2), &store).ok());
  EXPECT_TRUE(wait.get().ok());
}

TEST(FrameHeaderTest, StrangersAndMismatchesAreToldApart) {
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
  EXPECT_THAT(abc.Tail(), AllOf(HasSubstr("all_gather #1 of class all_to_all (8 bytes)"), HasSubstr("barrier #0")));
}

}  // namespace
}  // namespace switchyard
