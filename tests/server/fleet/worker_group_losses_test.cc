// Losses that several see: the group forms again as soon as a worker is there.
#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

// A peer notices that a connection has closed before the server knows whose process has ended.
TEST_F(GroupTest, AFaultThatALossExplainsIsNoFailedTry) {
  Form(2);
  WorkerId last = 2;
  for (int round = 0; round < 9; ++round) {
    group->Fault(1, group->epoch(), "rank 1 left while the group formed", now);
    group->Lost(last, "process ended with signal 9 (Killed)", now);
    ASSERT_EQ(group->state(), WorkerGroup::State::kWaiting);
    ASSERT_TRUE(Register(++last, Info(absl::StrCat("b", round), 1)).ok());
    EXPECT_EQ(group->state(), WorkerGroup::State::kJoining) << "without a pause, at round " << round;
  }
  // Nobody is lost: the try has failed, for the first time.
  group->Fault(1, group->epoch(), "cannot run", now);
  Pass(absl::Milliseconds(50), {1, last});
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  Pass(absl::Milliseconds(50), {1, last});
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
}

TEST_F(GroupTest, ALossForgetsOneFailedTryAndNoMore) {
  Form(2);
  for (int i = 0; i < 3; ++i) {
    group->Fault(1, group->epoch(), "cannot run", now);
    while (group->state() == WorkerGroup::State::kWaiting) Pass(absl::Milliseconds(50), {1, 2});
  }
  group->Fault(1, group->epoch(), "cannot run", now);
  group->Lost(2, "its link ended", now);
  ASSERT_TRUE(Register(3, Info("c", 1)).ok());
  ASSERT_EQ(group->state(), WorkerGroup::State::kJoining);
  group->Fault(1, group->epoch(), "cannot run", now);  // the fourth failed try
  Pass(absl::Milliseconds(750), {1, 3});
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  Pass(absl::Milliseconds(50), {1, 3});
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
}

// On a busy machine heartbeats may be late, while a worker says otherwise that it lives.
TEST_F(GroupTest, WhoeverSaysSomethingIsNotFenced) {
  Make(2);
  ASSERT_TRUE(Register(1, Info("a")).ok());
  ASSERT_TRUE(Register(2, Info("b")).ok());
  for (int i = 1; i <= 4; ++i) {
    Pass(absl::Seconds(1), {1});
    group->LoadProgress(2, {.epoch = 1, .done = i, .total = 4}, now);
  }
  Pass(absl::Seconds(1), {1});
  MakeReady();
  for (int64_t step = 1; step <= 4; ++step) {
    Execute(step);
    Pass(absl::Seconds(1), {1});
    Answer(1, step);
    Answer(2, step);
  }
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Pass(absl::Milliseconds(1550), {1});
  EXPECT_EQ(group->members().count(2), 0u) << "it says nothing any more";
}

TEST_F(GroupTest, RanksAreToldWhetherTheirLinksAreEncrypted) {
  for (const bool encrypt : {false, true}) {
    encrypt_links = encrypt;
    Form(2);
    EXPECT_EQ(workers[1]->assignments.back().encrypt_links, encrypt);
    EXPECT_EQ(workers[2]->assignments.back().encrypt_links, encrypt);
  }
}

TEST_F(GroupTest, GpusOnSeveralMachinesCannotEncrypt) {
  encrypt_links = true;
  Make(2);
  fleet::WorkerInfo here = Info("a"), there = Info("b"), cpu = Info("c");
  here.device = there.device = "cuda:0";
  here.collective_address = "127.0.0.1";
  there.collective_address = cpu.collective_address = "10.0.0.2";
  EXPECT_TRUE(Register(1, here).ok());
  const absl::Status refused = Register(2, there);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--encrypt_links: cuda:0 on 10.0.0.2 would reach the other workers by NCCL, which cannot "
                        "encrypt"));
  Make(2);
  EXPECT_TRUE(Register(1, cpu).ok());
  encrypt_links = false;
  Make(2);
  EXPECT_TRUE(Register(1, there).ok());
}

}  // namespace
}  // namespace switchyard::server
