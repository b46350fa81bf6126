// A rank's process ends while the others compute.  Its NCCL connections close before the group's own, as was seen on an
// H100.  The others' errors name it.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/status_macros.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/nccl_control.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/comm/nccl_test_util.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

// From the loss on: not the watch's 5 s, nor the deadline's 20.
constexpr absl::Duration kLimit = absl::Milliseconds(4500);

// A host group of a process that may end: no thread of it says anything more, and its connections close later or never.
class MortalCommunicator : public Communicator {
 public:
  explicit MortalCommunicator(std::unique_ptr<Communicator> inner)
      : Communicator(inner->group(), MessagePool::Create()), inner_(std::move(inner)) {}

  void FallSilent() {
    absl::MutexLock lock(&mu_);
    silent_ = true;
  }
  void Abort(absl::string_view reason) override {
    inner_->Abort(reason);
    absl::MutexLock lock(&mu_);
    silent_ = closed_ = true;
  }
  absl::Status status() const override { return inner_->status(); }

  WorkOr StartExchange(Exchange exchange) override {
    {
      absl::MutexLock lock(&mu_);
      if (silent_) return std::make_unique<Silence>(this);
    }
    return inner_->StartExchange(std::move(exchange));
  }

 private:
  class Silence : public OnceWork {
   public:
    explicit Silence(MortalCommunicator* comm) : comm_(comm) {}

   private:
    absl::Status Finish() override {
      absl::MutexLock lock(&comm_->mu_);
      comm_->mu_.Await(absl::Condition(&comm_->closed_));
      return absl::UnavailableError("this process has ended");
    }
    MortalCommunicator* const comm_;
  };

  const std::unique_ptr<Communicator> inner_;
  absl::Mutex mu_;
  bool silent_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

class NcclLostRankTest : public testing::TestWithParam<int> {
 protected:
  NcclLostRankTest() : world_(GetParam()), dies_(world_ - 2) {
    group_ = test::FormNcclOverSockets(world_, [this](std::unique_ptr<Communicator> watch) {
      if (watch->rank() != dies_) return watch;
      auto mortal = std::make_unique<MortalCommunicator>(std::move(watch));
      dying_watch_ = mortal.get();
      return std::unique_ptr<Communicator>(std::move(mortal));
    });
    nccl_emulation::NoticeEnds();
  }
  ~NcclLostRankTest() override {
    group_.ranks.clear();
    nccl_emulation::Reset();
    cuda_emulation::Reset();
    EXPECT_EQ(nccl_emulation::NumLive(), 0);
  }

  // All exchange, but for the one that dies, which runs `end`.  A survivor runs `meanwhile` before it waits.
  std::vector<std::string> SurvivorsErrors(const std::function<void()>& end, const test::RankFn& meanwhile = nullptr) {
    absl::Time ending;
    absl::BlockingCounter under_way(world_ - 1);  // the others' exchanges
    const auto statuses = test::RunRanks(&group_, [&](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
      if (comm->rank() == dies_) {
        under_way.Wait();
        ending = absl::Now();
        end();
        return absl::OkStatus();
      }
      auto started = test::StartExchange(comm, memory, 16, test::Soon());
      under_way.DecrementCount();
      ASSIGN_OR_RETURN(const auto work, std::move(started));
      const absl::Status before = meanwhile == nullptr ? absl::OkStatus() : meanwhile(comm, memory);
      const absl::Status status = work->WaitOnHost();
      EXPECT_TRUE(before.ok() || before == status) << before;
      return status;
    });
    EXPECT_LT(absl::Now() - ending, kLimit);
    std::vector<std::string> errors;
    for (int r = 0; r < world_; ++r) {
      if (r == dies_) continue;
      EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(group_.ranks[r]->status(), statuses[r]);
      errors.push_back(statuses[r].ToString());
    }
    return errors;
  }
  // NCCL's connections close; the group's own stay.
  void LoseProcess() {
    dying_watch_->FallSilent();
    group_.ranks[dies_]->Abort("the process ends");
  }
  std::string dead() const { return absl::StrCat("rank ", dies_); }

  const int world_, dies_;
  test::NcclRanks group_;
  MortalCommunicator* dying_watch_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Worlds, NcclLostRankTest, testing::Values(2, 3));

TEST_P(NcclLostRankTest, ItIsNamedThoughItsConnectionsStay) {
  for (const std::string& error : SurvivorsErrors([this] { LoseProcess(); })) {
    EXPECT_THAT(error, HasSubstr(dead() + " does not answer: NCCL's asynchronous error: remote process exited"));
  }
}

// NCCL might block in a launch after its error, so there is none, and what asks for it gets the same error.
TEST_P(NcclLostRankTest, ALaunchMeanwhileWaitsForTheName) {
  const auto launch = [](Communicator* comm, test::DeviceMemory* memory) -> absl::Status {
    absl::SleepFor(absl::Milliseconds(200));
    ASSIGN_OR_RETURN(auto work, test::StartSum(comm, memory, test::Soon()));
    return work->WaitOnHost();
  };
  for (const std::string& error : SurvivorsErrors([this] { LoseProcess(); }, launch)) {
    EXPECT_THAT(error, HasSubstr(dead() + " does not answer: NCCL's asynchronous error: remote process exited"));
  }
}

TEST_P(NcclLostRankTest, ItIsNamedWhenItsConnectionsCloseLater) {
  const auto errors = SurvivorsErrors([this] {
    LoseProcess();
    absl::SleepFor(absl::Milliseconds(60));
    dying_watch_->Abort("the kernel closes it");
  });
  // Who notices closes its own connections, so another may see those go first.
  bool named = false;
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank "));
    named |= absl::StrContains(error, dead() + " is gone") || absl::StrContains(error, dead() + " does not answer");
  }
  EXPECT_TRUE(named) << errors.front() << errors.back();
}

// A rank that fails reports why, and its NCCL ends before its report is sent.
TEST_P(NcclLostRankTest, WhatAFailedRankSaysGoesBeforeNcclsError) {
  const auto errors = SurvivorsErrors([this] { group_.ranks[dies_]->Abort("the test says so"); });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr(dead() + " ended the group: aborted: the test says so"));
  }
}

// One rank's NCCL reports a network error, and all ranks are there.
TEST_P(NcclLostRankTest, WhoAnswersIsNotBlamed) {
  const int reports = world_ - 1;
  nccl_emulation::FailRank(reports, 1, ncclRemoteError);
  auto work = test::StartExchange(group_.ranks[reports].get(), group_.memory[reports].get(), 16, test::Soon());
  ASSERT_TRUE(work.ok()) << work.status();
  const absl::Time began = absl::Now();
  const absl::Status status = (*work)->WaitOnHost();
  EXPECT_LT(absl::Now() - began, kLimit);
  EXPECT_THAT(status.ToString(), HasSubstr("UNAVAILABLE: NCCL's asynchronous error: remote process exited"));
  EXPECT_THAT(status.ToString(), HasSubstr("(no peer is known to be gone)"));
  EXPECT_THAT(status.ToString(), Not(HasSubstr("rank ")));
}

}  // namespace
}  // namespace switchyard::comm
