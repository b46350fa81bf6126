// Callbacks through which the engine uses the server around it.  Called on the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "scheduler/fleet/worker_info.h"
#include "server/fleet/loss_causes.h"

namespace switchyard::server {

struct EngineHooks {
  std::function<void(bool ready)> on_ready;                     // readiness has changed
  std::function<void(int local_index, int64_t pid)> on_fenced;  // kill this local worker
  // How a local worker's process ended ("signal 9 (Killed)"); empty while it runs or if it is unknown.
  std::function<std::string(int local_index, int64_t pid)> end_of;
  // How many processes the kernel has killed for want of memory.
  std::function<int64_t()> oom_kills = [] { return LossCauses::OomKills(); };
  std::function<bool(const fleet::WorkerInfo&)> has_unread;  // whether the worker's connection has unread bytes
  std::function<void(const std::string& token)> on_epoch;    // open the rendezvous store
  std::function<void(absl::Time now)> on_tick;               // called every 50 ms or so, to check time limits
  std::function<void()> on_first_group;                      // the first group has formed
  std::function<void(std::string why)> on_fatal;             // the server cannot start with these workers
};

}  // namespace switchyard::server
