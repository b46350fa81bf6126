// Whether a group of workers was lost for a reason outside of what it ran: a local worker that somebody killed or
// stopped, any that fell silent (its machine gone), or a pause of this process, after which links end.  A worker that
// crashed or ran out of memory, one from elsewhere whose link ended, and a step that took too long may be the work of a
// request.
//
// Used on the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/fleet/worker_info.h"
#include "server/fleet/server_stall.h"

namespace switchyard::server {

class LossCauses {
 public:
  // end_of: EngineHooks'; may be null.  oom_kills: how many processes the kernel has killed for want of memory.
  explicit LossCauses(
      std::function<std::string(int local_index, int64_t pid)> end_of,
      std::function<int64_t()> oom_kills = [] { return OomKills(); });

  // The worker's link has ended.  end: how its process did, as EngineHooks::end_of says; empty: not known yet.
  void Lost(const fleet::WorkerInfo& info, const std::string& end);
  // Called often.  ready: the group serves, nothing is lost.
  void Tick(absl::Time now, bool ready);
  // The worker was fenced: it was silent.
  void Fenced() { silent_ = true; }
  // Says so of all that was lost since the last call, and forgets it.
  bool TakeVerdict();

  // By /proc/vmstat; 0 where that does not tell.
  static int64_t OomKills();

 private:
  const std::function<std::string(int, int64_t)> end_of_;
  const std::function<int64_t()> oom_kills_;
  int64_t oom_kills_before_;  // a second before the loss at most, and not before the last verdict
  absl::Time looked_ = absl::InfinitePast();
  ServerStall server_stall_;
  bool silent_ = false, killed_ = false;
  bool paused_ = false;                        // this process, a second before the loss at most, or since
  std::vector<std::pair<int, int64_t>> lost_;  // local workers whose ends are not known yet: index and process
};

}  // namespace switchyard::server
