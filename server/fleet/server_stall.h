// Detects pauses of this process, which must not count as silence of the workers that it watches.
//
// A process that was stopped, swapped out or starved has not read the messages that came meanwhile: they wait in
// sockets and queues.  Thread-compatible; reads no clock.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace switchyard::server {

class ServerStall {
 public:
  // Usual time between two looks; anything longer is a pause.  The looks are closer, so of each pause up to this much
  // counts as time in which the process watched: a watched limit should be several times as long.
  static constexpr absl::Duration kUsual = absl::Milliseconds(250);

  // Call at each look.  Returns the pause since the last one; zero at the first.
  absl::Duration Look(absl::Time now) {
    const absl::Duration since = now - std::exchange(last_, now);
    return since == absl::InfiniteDuration() ? absl::ZeroDuration() : std::max(absl::ZeroDuration(), since - kUsual);
  }

 private:
  absl::Time last_ = absl::InfinitePast();
};

// Returns the start of a worker's silence, moved later by a pause of this process that ends now.
inline absl::Time WithoutPause(absl::Time since, absl::Duration pause, absl::Time now) {
  return std::min(now, since + pause);
}

}  // namespace switchyard::server
