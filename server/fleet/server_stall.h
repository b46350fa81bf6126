// How long a process that looks after others every now and then stood still itself.
//
// Who was stopped, swapped out or starved has not read what the others said meanwhile: it lies in sockets and queues.
// So that time is nobody's silence.  Thread-compatible; reads no clock.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace switchyard::server {

class ServerStall {
 public:
  // Between two looks this much is usual; what is beyond is a pause.
  static constexpr absl::Duration kUsual = absl::Milliseconds(250);

  // To be called at each look.  Returns the pause since the last one; none at the first.
  absl::Duration Look(absl::Time now) {
    const absl::Duration since = now - std::exchange(last_, now);
    return since == absl::InfiniteDuration() ? absl::ZeroDuration() : std::max(absl::ZeroDuration(), since - kUsual);
  }

 private:
  absl::Time last_ = absl::InfinitePast();
};

// A time from which somebody's silence counts, without a pause of our own that ended now.
inline absl::Time WithoutPause(absl::Time since, absl::Duration pause, absl::Time now) {
  return std::min(now, since + pause);
}

}  // namespace switchyard::server
