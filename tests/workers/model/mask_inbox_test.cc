// Masks that come before they are awaited, after, never; and what ends a wait.
#include "workers/model/runner/mask_inbox.h"

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace switchyard::model {
namespace {

batching::RankMasks Of(int32_t token) { return {.items = {{.item = 0, .mask = {.ids = {token}, .bits = {}}}}}; }
absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

TEST(MaskInbox, KeepsMasksByStepUntilTheyAreAwaited) {
  MaskInbox inbox;
  inbox.Put(3, 8, Of(8));
  inbox.Put(3, 7, Of(7));
  EXPECT_EQ(*inbox.Await(3, 7, Soon()), Of(7));
  EXPECT_EQ(*inbox.Await(3, 8, Soon()), Of(8));
  EXPECT_EQ(inbox.Await(3, 8, absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(MaskInbox, WaitsForThem) {
  MaskInbox inbox;
  std::thread link([&] { inbox.Put(1, 2, Of(5)); });
  EXPECT_EQ(*inbox.Await(1, 2, Soon()), Of(5));
  link.join();
}

TEST(MaskInbox, ThoseOfAnotherEpochOrStepDoNotCount) {
  MaskInbox inbox;
  inbox.Put(1, 2, Of(5));  // of an epoch that is over
  inbox.Put(2, 1, Of(6));  // of a step that was not awaited
  EXPECT_EQ(inbox.Await(2, 2, absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(inbox.Await(2, 1, absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded)
      << "dropped, as a later step was awaited";
}

TEST(MaskInbox, AnAbortEndsWaitsOfItsEpochAndOfEarlierOnes) {
  MaskInbox inbox;
  std::thread link([&] { inbox.Abort(4, "rank 1 was lost"); });
  const absl::Status status = inbox.Await(4, 9, Soon()).status();
  link.join();
  EXPECT_EQ(status, absl::AbortedError("rank 1 was lost"));
  inbox.Put(3, 1, Of(1));
  EXPECT_EQ(inbox.Await(3, 1, Soon()).status().code(), absl::StatusCode::kAborted);
  inbox.Put(5, 1, Of(1));
  EXPECT_TRUE(inbox.Await(5, 1, Soon()).ok());
  inbox.ForgetEpochs();
  inbox.Put(1, 1, Of(1));
  EXPECT_TRUE(inbox.Await(1, 1, Soon()).ok());
}

TEST(MaskInbox, IsBounded) {
  MaskInbox inbox;
  const int64_t most = MaskInbox::kMostSteps;
  for (int64_t step = 1; step <= most + 1; ++step) inbox.Put(1, step, Of(1));
  EXPECT_FALSE(inbox.Await(1, 1, absl::InfinitePast()).ok());
  EXPECT_TRUE(inbox.Await(1, most + 1, Soon()).ok());
}

}  // namespace
}  // namespace switchyard::model
