// Calls by which the engine has the server around it act.  On the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "scheduler/fleet/worker_info.h"

namespace switchyard::server {

struct EngineHooks {
  std::function<void(bool ready)> on_ready;                     // readiness has changed
  std::function<void(int local_index, int64_t pid)> on_fenced;  // kill this local worker
  // How the process of a local worker ended ("signal 9 (Killed)"); empty if it runs or that is not known.
  std::function<std::string(int local_index, int64_t pid)> end_of;
  std::function<bool(const fleet::WorkerInfo&)> has_unread;  // whether bytes of the worker were not read yet
  std::function<void(const std::string& token)> on_epoch;    // open the rendezvous store
  std::function<void(absl::Time now)> on_tick;               // called every 50 ms or so, to check time limits
  std::function<void()> on_first_group;                      // the first group stands
  std::function<void(std::string why)> on_fatal;             // the server cannot start with these workers
};

}  // namespace switchyard::server
