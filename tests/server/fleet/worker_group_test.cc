// Which workers may join, their assignments, and the loss of members.
#include "server/fleet/worker_group.h"

#include <string>

#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST_F(GroupTest, FormsWhenAllAssignmentsAreTaken) {
  Make(2);
  ASSERT_TRUE(Register(1, Info("a", 1)).ok());
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_EQ(group->NotReadyReason(), "1 of 2 workers registered; none for rank 0");
  EXPECT_THAT(workers[1]->assignments, IsEmpty());
  ASSERT_TRUE(Register(2, Info("b", 0)).ok());
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
  ASSERT_EQ(workers[1]->assignments.size(), 1u);
  const fleet::RankAssignment& assignment = workers[1]->assignments[0];
  EXPECT_EQ(assignment.epoch, 1);
  EXPECT_EQ(assignment.world, 2);
  EXPECT_EQ(assignment.rank, 1) << "a local worker likes the rank of its index";
  EXPECT_EQ(workers[2]->assignments.at(0).rank, 0);
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(assignment.store_token, tokens[0]);
  EXPECT_EQ(workers[2]->assignments[0].store_token, tokens[0]);
  EXPECT_GE(tokens[0].size(), 32u);

  group->LoadProgress(1, {.epoch = 1, .done = 30, .total = 100}, now);
  EXPECT_EQ(group->NotReadyReason(), "loading weights: 30 %");
  group->LoadProgress(1, {.epoch = 1, .done = 100, .total = 100}, now);
  group->Ready(1, {.epoch = 1, .num_kv_blocks = 12}, now);
  EXPECT_EQ(group->NotReadyReason(), "the group forms: 1 of 2 workers ready");
  EXPECT_THAT(log, IsEmpty());
  group->Ready(2, {.epoch = 1, .num_kv_blocks = 9}, now);
  EXPECT_THAT(log, ElementsAre("up 1 world 2 blocks 9 first b"));
  EXPECT_EQ(group->NotReadyReason(), "");
}

TEST_F(GroupTest, SaysWhetherExpertsAreInPlaceInThisGroup) {
  Make(2);
  for (const WorkerId id : {1, 2}) ASSERT_TRUE(Register(id, Info(id == 1 ? "a" : "b", static_cast<int>(id) - 1)).ok());
  for (const WorkerId id : {1, 2}) group->Ready(id, {.epoch = 1, .num_kv_blocks = 10, .experts_in_place = true}, now);
  EXPECT_THAT(log, ElementsAre("up 1 world 2 blocks 10 first a in place"));
}

struct Misfit {
  const char* name;
  void (*change)(fleet::WorkerInfo* info);
  absl::StatusCode code;
  const char* text;
};

class MisfitTest : public GroupTest, public testing::WithParamInterface<Misfit> {};

TEST_P(MisfitTest, IsRefusedAndTheGroupGoesOn) {
  Make(2);
  ASSERT_TRUE(Register(1, Info("a")).ok());
  fleet::WorkerInfo info = Info("b");
  GetParam().change(&info);
  const absl::Status status = Register(2, info);
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().text));
  EXPECT_EQ(group->members().size(), 1u);
  EXPECT_TRUE(Register(3, Info("c")).ok());
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
}

INSTANTIATE_TEST_SUITE_P(
    Misfits, MisfitTest,
    testing::Values(Misfit{"token", [](fleet::WorkerInfo* i) { i->join_token = "secreT"; },
                           absl::StatusCode::kUnauthenticated, "join token"},
                    Misfit{"no_token", [](fleet::WorkerInfo* i) { i->join_token = ""; },
                           absl::StatusCode::kUnauthenticated, "join token"},
                    Misfit{"no_model", [](fleet::WorkerInfo* i) { i->context = 0; }, absl::StatusCode::kInvalidArgument,
                           "a worker that serves names its model"},
                    Misfit{"experts",
                           [](fleet::WorkerInfo* i) {
                             i->num_moe_layers = 2;
                             i->num_experts = 4;
                           },
                           absl::StatusCode::kInvalidArgument, "2 MoE layers, 0 of 4 experts a token"},
                    Misfit{"hash", [](fleet::WorkerInfo* i) { i->weights_hash = "h2"; },
                           absl::StatusCode::kFailedPrecondition, "weights hash h2: the group serves h1"},
                    Misfit{"isa", [](fleet::WorkerInfo* i) { i->isa = "avx512"; },
                           absl::StatusCode::kFailedPrecondition, "ISA avx512: the group runs avx2"},
                    Misfit{"dtype", [](fleet::WorkerInfo* i) { i->dtype = "bf16"; },
                           absl::StatusCode::kFailedPrecondition, "dtype bf16: the group runs fp32"},
                    Misfit{"quantization", [](fleet::WorkerInfo* i) { i->quantization = "int8"; },
                           absl::StatusCode::kFailedPrecondition, "quantization int8: the group runs none"},
                    Misfit{"kv_cache", [](fleet::WorkerInfo* i) { i->kv_cache_dtype = "fp8"; },
                           absl::StatusCode::kFailedPrecondition,
                           "kv_cache_dtype fp8: this server's --kv_cache_dtype is auto"},
                    Misfit{"twin", [](fleet::WorkerInfo* i) { i->incarnation = "a"; }, absl::StatusCode::kAlreadyExists,
                           "worker a is registered"}),
    [](const auto& info) { return std::string(info.param.name); });

// A worker from elsewhere that is faster must not determine what the local workers have to be.
TEST_F(GroupTest, TheServersOwnWorkersComeFirst) {
  Make(2, /*local_workers=*/1);
  fleet::WorkerInfo wrong = Info("wrong");
  wrong.dtype = "bf16";
  const absl::Status early = Register(1, wrong);
  EXPECT_EQ(early.code(), absl::StatusCode::kUnavailable) << "not final: it may try again";
  EXPECT_THAT(std::string(early.message()), HasSubstr("0 of this server's own 1 workers registered; they come first"));
  fleet::WorkerInfo stranger = Info("stranger");
  stranger.join_token = "guess";
  EXPECT_EQ(Register(2, stranger).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(group->members(), IsEmpty());

  ASSERT_TRUE(Register(3, Info("local", 0)).ok());
  const absl::Status late = Register(4, wrong);
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(late.message()), "dtype bf16: the group runs fp32");
  ASSERT_TRUE(Register(5, Info("right")).ok());
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
}

// A worker that joins with the shared token is not a local one, whatever it claims.
TEST_F(GroupTest, AStrangerWithALocalIndexEvictsNobody) {
  local_token = "of own workers alone";
  Make(2, /*local_workers=*/1);
  fleet::WorkerInfo early = Info("early", 0);
  early.weights_hash = "h2";
  EXPECT_EQ(Register(1, early).code(), absl::StatusCode::kUnavailable) << "own workers come first";
  fleet::WorkerInfo own = Info("own", 0);
  own.join_token = local_token;
  ASSERT_TRUE(Register(2, own).ok());
  fleet::WorkerInfo stranger = Info("stranger", 0);
  stranger.weights_hash = "h2";
  EXPECT_EQ(Register(3, stranger).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(workers[2]->closed.ok()) << workers[2]->closed;
  EXPECT_EQ(group->members().count(2), 1u);
  ASSERT_TRUE(Register(4, Info("remote", 0)).ok());
  EXPECT_EQ(RankOf(2), 0);
  EXPECT_EQ(group->members().at(4).info.local_index, -1);
}

TEST_F(GroupTest, WhatTheServersOwnWorkersSetOutlivesThem) {
  Make(3, /*local_workers=*/1);
  ASSERT_TRUE(Register(1, Info("local", 0)).ok());
  ASSERT_TRUE(Register(2, Info("remote")).ok());
  group->Lost(1, "gone", now);
  group->Lost(2, "gone", now);
  fleet::WorkerInfo wrong = Info("wrong");
  wrong.isa = "avx512";
  EXPECT_EQ(Register(3, wrong).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Register(4, Info("right")).ok()) << "it need not wait for the local one to come back";
}

TEST_F(GroupTest, AWorkersAdaptersHaveNamesThatUsersCanGive) {
  Make(2);
  fleet::WorkerInfo bad = Info("bad");
  bad.adapters = {"good", "a:b"};
  EXPECT_EQ(Register(1, bad).code(), absl::StatusCode::kInvalidArgument);
  bad.adapters = {"good", "good"};
  EXPECT_EQ(Register(2, bad).code(), absl::StatusCode::kInvalidArgument);
  bad.adapters = {"good", "b"};
  EXPECT_TRUE(Register(3, bad).ok());
}

// Before anything was served, a local worker may come back with other weights, for example if its model was changed.
TEST_F(GroupTest, ALocalWorkerSendsAwayWhoeverDiffersFromIt) {
  Make(3, /*local_workers=*/1);
  ASSERT_TRUE(Register(1, Info("local", 0)).ok());
  ASSERT_TRUE(Register(2, Info("remote")).ok());
  group->Lost(1, "gone", now);
  fleet::WorkerInfo changed = Info("again", 0);
  changed.weights_hash = "h2";
  ASSERT_TRUE(Register(3, changed).ok());
  EXPECT_EQ(workers[2]->closed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(workers[2]->closed.message()),
            "weights hash h1: the group serves h2; give the worker the same --model, --adapter and --adapters");
  EXPECT_EQ(group->members().size(), 1u);
  fleet::WorkerInfo remote = Info("remote2");
  remote.weights_hash = "h2";
  EXPECT_TRUE(Register(4, remote).ok());
}

TEST_F(GroupTest, LocalWorkersMustAgreeWithEachOther) {
  Make(2, /*local_workers=*/2);
  ASSERT_TRUE(Register(1, Info("a", 0)).ok());
  fleet::WorkerInfo other = Info("b", 1);
  other.weights_hash = "h2";
  EXPECT_EQ(Register(2, other).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(group->members().size(), 1u);
  Make(1, /*local_workers=*/1);
  EXPECT_EQ(Register(3, Info("c", 1)).code(), absl::StatusCode::kUnavailable) << "no index of this server's";
}

TEST_F(GroupTest, ADtypeThatTheServerNamesHoldsForTheFirstToo) {
  Make(1, /*local_workers=*/0, "bf16");
  const absl::Status status = Register(1, Info("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()), "dtype fp32: this server's --dtype is bf16");
  fleet::WorkerInfo right = Info("b");
  right.dtype = "bf16";
  EXPECT_TRUE(Register(2, right).ok());
}

TEST_F(GroupTest, AWrongTokenNeverShowsTheRightOne) {
  Make(1);
  fleet::WorkerInfo info = Info("a");
  info.join_token = "guess";
  const absl::Status status = Register(1, info);
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("secret")));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("guess")));
}

TEST_F(GroupTest, WhatWasServedIsNotForgottenWhenAllAreGone) {
  Make(1);
  fleet::WorkerInfo other = Info("a");
  other.weights_hash = "h2";
  ASSERT_TRUE(Register(1, other).ok());
  group->Lost(1, "gone", now);
  ASSERT_TRUE(Register(2, Info("b")).ok()) << "nothing was served yet";
  MakeReady();
  group->Lost(2, "gone", now);
  other.incarnation = "c";
  const absl::Status status = Register(3, other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("h2: this server has served h1"));
  EXPECT_TRUE(Register(4, Info("d")).ok());
}

TEST_F(GroupTest, WorkersBesideTheServerLearnWhereTheOthersAre) {
  Make(2);
  fleet::WorkerInfo local = Info("a", 0), remote = Info("b");
  local.collective_address = "127.0.0.1";
  remote.collective_address = "10.1.2.3";
  ASSERT_TRUE(Register(1, local).ok());
  ASSERT_TRUE(Register(2, remote).ok());
  EXPECT_EQ(workers[1]->assignments.at(0).reach, "10.1.2.3");
  group->Lost(2, "gone", now);
  remote.incarnation = "c";
  remote.collective_address = "::1";
  ASSERT_TRUE(Register(3, remote).ok());
  EXPECT_EQ(workers[1]->assignments.at(1).reach, "") << "all on this machine";
}

TEST_F(GroupTest, OneTooManyMayTryAgain) {
  Form(1);
  const absl::Status status = Register(2, Info("b"));
  // A code after which the worker tries again: the server may not have noticed yet that its old link is gone.
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("all 1 seats"));
  group->Lost(1, "gone", now);
  EXPECT_TRUE(Register(3, Info("b")).ok());
}

TEST_F(GroupTest, SurvivorsKeepTheirRanksAndANewcomerGetsTheFreeOne) {
  Form(3);
  group->Lost(2, "its link ended", now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_THAT(workers[1]->aborts, ElementsAre(Pair(1, "worker of rank 1 was lost: its link ended")));
  EXPECT_THAT(workers[3]->aborts.size(), 1u);
  EXPECT_EQ(log.back(), "down: worker of rank 1 was lost: its link ended") << "no process, since clients see it";
  ASSERT_TRUE(Register(9, Info("z", 0)).ok());  // the rank of its index is taken
  EXPECT_EQ(RankOf(1), 0);
  EXPECT_EQ(RankOf(9), 1);
  EXPECT_EQ(RankOf(3), 2);
  EXPECT_EQ(group->epoch(), 2);
  EXPECT_EQ(workers[1]->assignments.back().epoch, 2);
  EXPECT_NE(tokens[0], tokens[1]) << "a token of its own for each epoch";
  MakeReady();
  EXPECT_EQ(log.back(), "up 2 world 3 blocks 10 first a");
}

TEST_F(GroupTest, WorkersFromElsewhereFillTheAssignmentsThatLocalOnesLeave) {
  Make(3);
  ASSERT_TRUE(Register(1, Info("far1")).ok());
  ASSERT_TRUE(Register(2, Info("far2")).ok());
  ASSERT_TRUE(Register(3, Info("near", 1)).ok());
  EXPECT_EQ(RankOf(3), 1);
  EXPECT_EQ(RankOf(1), 0);
  EXPECT_EQ(RankOf(2), 2);
}

TEST_F(GroupTest, MissingRanksAreNamed) {
  Make(4);
  EXPECT_EQ(group->NotReadyReason(), "0 of 4 workers registered; none for rank 0, 1, 2, 3");
  ASSERT_TRUE(Register(1, Info("far")).ok());  // gets the lowest free rank
  ASSERT_TRUE(Register(2, Info("near", 2)).ok());
  EXPECT_EQ(group->NotReadyReason(), "2 of 4 workers registered; none for rank 1, 3");
}

TEST_F(GroupTest, ALocalIndexBeyondTheWorldIsOnlyAWish) {
  Make(1);
  ASSERT_TRUE(Register(1, Info("a", 40)).ok());
  EXPECT_EQ(RankOf(1), 0);
}

TEST_F(GroupTest, MessagesOfAnOldEpochAreDropped) {
  Form(2);
  group->Fault(1, 1, "collective failed", now);
  Pass(absl::Milliseconds(150), {1, 2});
  ASSERT_EQ(group->epoch(), 2);
  ASSERT_EQ(group->state(), WorkerGroup::State::kJoining);
  group->Ready(1, {.epoch = 1, .num_kv_blocks = 10}, now);
  group->Ready(2, {.epoch = 1, .num_kv_blocks = 10}, now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
  group->Fault(1, 1, "late", now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining);
  MakeReady();
  Execute(1);
  group->Result(1, 1, 1, batching::RankResult{}, now);
  group->Result(2, 1, 1, batching::RankResult{}, now);
  group->Fault(2, 1, "late", now);
  EXPECT_EQ(log.back(), "up 2 world 2 blocks 10 first a") << "no step done, not down";
  Answer(1, 1);
  Answer(2, 1);
  EXPECT_EQ(log.back(), "step 1 1 2");
}

TEST_F(GroupTest, SilenceIsSuspectAtOneSecondAndFencedAtOneAndAHalf) {
  Form(2);
  Pass(absl::Milliseconds(1000), {1});
  EXPECT_FALSE(group->members().at(2).suspect);
  Pass(absl::Milliseconds(50), {1});
  EXPECT_TRUE(group->members().at(2).suspect);
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  group->Heartbeat(2, now);
  EXPECT_FALSE(group->members().at(2).suspect);
  Pass(absl::Milliseconds(1500), {1});
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
  Pass(absl::Milliseconds(50), {1});
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_EQ(group->members().count(2), 0u);
  EXPECT_EQ(workers[2]->closed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(workers[1]->aborts, ElementsAre(Pair(1, HasSubstr("no heartbeat for 1.5s, fenced"))));
  EXPECT_EQ(log.back(), "kill 1 101");
  EXPECT_THAT(log[log.size() - 2], HasSubstr("down: worker of rank 1 was lost: no heartbeat"));
}

TEST_F(GroupTest, AZombieMustRegisterAnew) {
  Form(2);
  Pass(absl::Milliseconds(1600), {1});
  const size_t before = log.size();
  // The worker wakes up and keeps sending on its old link.
  group->Heartbeat(2, now);
  group->Ready(2, {.epoch = 1, .num_kv_blocks = 10}, now);
  group->Result(2, 1, 1, batching::RankResult{}, now);
  group->Fault(2, 1, "x", now);
  group->Lost(2, "its link ended", now);
  EXPECT_EQ(log.size(), before);
  EXPECT_EQ(group->members().size(), 1u);
  ASSERT_TRUE(Register(3, Info("b2", 1)).ok());
  EXPECT_EQ(RankOf(3), 1);
  MakeReady();
  EXPECT_EQ(group->epoch(), 2);
}

TEST_F(GroupTest, AFencedWorkerFromElsewhereIsNotKilled) {
  Make(1);
  ASSERT_TRUE(Register(1, Info("far")).ok());
  MakeReady();
  Pass(absl::Milliseconds(1600), {});
  EXPECT_THAT(log.back(), HasSubstr("down: "));
}

TEST_F(GroupTest, AMemberLostWhileJoiningStartsOver) {
  Make(2);
  ASSERT_TRUE(Register(1, Info("a")).ok());
  ASSERT_TRUE(Register(2, Info("b")).ok());
  group->Ready(1, {.epoch = 1, .num_kv_blocks = 10}, now);
  group->Lost(2, "its link ended", now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kWaiting);
  EXPECT_THAT(workers[1]->aborts.size(), 1u);
  EXPECT_THAT(log, IsEmpty()) << "what was never up does not go down";
  ASSERT_TRUE(Register(3, Info("c")).ok());
  group->Ready(3, {.epoch = 2, .num_kv_blocks = 10}, now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kJoining) << "the survivor's readiness was of epoch 1";
  group->Ready(1, {.epoch = 2, .num_kv_blocks = 10}, now);
  EXPECT_EQ(group->state(), WorkerGroup::State::kReady);
}

}  // namespace
}  // namespace switchyard::server
