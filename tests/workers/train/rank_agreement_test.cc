// Ranks exchange words: all draw the same conclusion, and a status keeps its mark for another attempt.
#include "workers/train/job/rank_agreement.h"

#include <thread>

#include "gtest/gtest.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

// fn's result on each rank.
template <class Answer>
std::vector<Answer> OnRanks(int world, const std::function<Answer(comm::Communicator*)>& fn) {
  std::vector<std::unique_ptr<comm::Communicator>> comms = comm::MakeLocalGroup(world);
  std::vector<Answer> answers(comms.size(), Answer(absl::UnknownError("has not run")));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms.size(); ++r) {
    threads.emplace_back([&, r] { answers[r] = fn(comms[r].get()); });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

TEST(RankAgreementTest, TheFirstErrorIsEverybodys) {
  const auto all = OnRanks<absl::Status>(3, [](comm::Communicator* comm) {
    absl::Status mine = absl::OkStatus();
    if (comm->rank() == 1) mine = Lost(absl::InvalidArgumentError("the second's"));
    if (comm->rank() == 2) mine = absl::DataLossError("the third's");
    return Agree(comm, mine, kLimit);
  });
  for (const absl::Status& status : all) {
    EXPECT_EQ(status, Lost(absl::InvalidArgumentError("rank 1: the second's")));
    EXPECT_EQ(OutcomeOf(status), jobs::TrainOutcome::kLost);
  }
  for (const absl::Status& status :
       OnRanks<absl::Status>(2, [](comm::Communicator* comm) { return Agree(comm, absl::OkStatus(), kLimit); })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(RankAgreementTest, TheLeadersTextIsEverybodys) {
  for (const std::string& text :
       {std::string("step-00000012"), std::string(), std::string(kMaxRankText, 'x'), std::string(kMaxRankText + 1, 'y'),
        std::string(100'000, 'z'), std::string("\0a", 2)}) {
    for (const absl::StatusOr<std::string>& reported :
         OnRanks<absl::StatusOr<std::string>>(2, [&](comm::Communicator* comm) -> absl::StatusOr<std::string> {
           return FromLeader(comm, comm->rank() == 0 ? text : std::string("nobody asked"), kLimit);
         })) {
      ASSERT_TRUE(reported.ok()) << reported.status();
      EXPECT_EQ(*reported, text);
    }
  }
  for (const absl::StatusOr<std::string>& reported :
       OnRanks<absl::StatusOr<std::string>>(2, [](comm::Communicator* comm) -> absl::StatusOr<std::string> {
         if (comm->rank() == 1) return FromLeader(comm, std::string(), kLimit);
         return FromLeader(comm, absl::NotFoundError("nothing"), kLimit);
       })) {
    EXPECT_EQ(reported.status(), Failed(absl::NotFoundError("rank 0: nothing")));
  }
}

TEST(RankAgreementTest, LongTextsAreCutBetweenCharacters) {
  RankWord word;
  const std::string umlaut = "\xc3\xa4";
  word.SetText(std::string(kMaxRankText - 1, 'x') + umlaut);
  EXPECT_EQ(std::string(word.text), std::string(kMaxRankText - 1, 'x'));
  word.SetText(std::string(kMaxRankText - 2, 'x') + umlaut);
  EXPECT_EQ(std::string(word.text), std::string(kMaxRankText - 2, 'x') + umlaut);
}

TEST(TrainOutcomeTest, GoesByCodeUnlessItIsMarked) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound, absl::StatusCode::kDataLoss,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnimplemented, absl::StatusCode::kPermissionDenied}) {
    EXPECT_EQ(OutcomeOf(absl::Status(code, "x")), jobs::TrainOutcome::kFailed);
    EXPECT_EQ(OutcomeOf(Lost(absl::Status(code, "x"))), jobs::TrainOutcome::kLost);
  }
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kInternal, absl::StatusCode::kAborted, absl::StatusCode::kCancelled}) {
    EXPECT_EQ(OutcomeOf(absl::Status(code, "x")), jobs::TrainOutcome::kLost);
    EXPECT_EQ(OutcomeOf(Failed(absl::Status(code, "x"))), jobs::TrainOutcome::kFailed);
  }
}

}  // namespace
}  // namespace switchyard::train
