// How long a local worker's successor waits, by how the worker ended.
//
// One that ends by itself, or is killed for want of memory, while it is young waits longer each time: 50 ms, doubling
// to 5 s.  One that somebody killed or asked to stop has not failed: it comes back at once, or, if that happens again
// and again, after 200 ms.  Each worker has a RestartPause of its own.  No clock.  Thread-compatible.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "absl/time/time.h"

namespace switchyard::server {

class RestartPause {
 public:
  // status: as waitpid gives it.  age: how long the worker lived.  short_of_memory: the kernel has killed a process for
  // want of memory meanwhile.
  absl::Duration After(int status, absl::Duration age, bool short_of_memory) {
    // (Asked to stop, by SIGTERM, a worker exits with 0.)
    const bool killed = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM
                                            : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (killed && !short_of_memory) {
      num_kills_ = age < kYoungKilled ? num_kills_ + 1 : 0;
      return num_kills_ > kFreeKills ? kAfterKills : absl::ZeroDuration();
    }
    num_deaths_ = age < kYoung ? num_deaths_ + 1 : 0;
    return std::min(kFirst * (1 << std::min(num_deaths_, 7)), kLongest);
  }

 private:
  static constexpr absl::Duration kYoung = absl::Seconds(10), kYoungKilled = absl::Seconds(3);
  static constexpr absl::Duration kFirst = absl::Milliseconds(50), kLongest = absl::Seconds(5);
  static constexpr absl::Duration kAfterKills = absl::Milliseconds(200);
  static constexpr int kFreeKills = 4;

  int num_deaths_ = 0, num_kills_ = 0;  // young ones, in a row
};

}  // namespace switchyard::server
