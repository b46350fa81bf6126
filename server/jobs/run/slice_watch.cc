#include "server/jobs/run/slice_watch.h"

#include <utility>

namespace switchyard::server {
namespace {

constexpr char kWaitsForServing[] = "waits for serving";
constexpr absl::Duration kStarves = absl::Seconds(2);

}  // namespace

// What it could not use of the time since the last tick is no fault of its ranks.
void SliceWatch::Tick(JobRun* run) {
  const absl::Time now = context_.host->Now(), before = std::exchange(watched_at_, now);
  const absl::Duration given = context_.host->ShareServing(run != nullptr);
  const absl::Duration got = given - std::exchange(given_, given);
  if (run == nullptr || before == absl::InfinitePast() || got > absl::ZeroDuration()) last_slice_at_ = now;
  if (run == nullptr || before == absl::InfinitePast()) return;
  if (const absl::Duration missed = now - before - got; missed > absl::ZeroDuration()) run->Postpone(missed, now);
  if (now - last_slice_at_ > kStarves) {
    run->Note(kWaitsForServing);
  } else if (run->job().note == kWaitsForServing) {
    run->Note("");
  }
}

}  // namespace switchyard::server
