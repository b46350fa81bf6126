// What GetLoad tells of the engine and its workers; a copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/batching/scheduler_stats.h"

namespace switchyard::server {

struct LoadSnapshot {
  struct Worker {
    int rank = -1;
    int64_t pid = 0;
    std::string host;
    std::string state;
    std::string metrics_address;  // HOST:PORT; empty: none
    batching::RankStats stats;
  };
  bool ready = false;
  std::string not_ready_reason;
  batching::SchedulerStats scheduler;
  std::vector<Worker> workers;
  int64_t group_epoch = 0;
};

}  // namespace switchyard::server
