// The scheduler's load and totals, as metrics and GetLoad show them; a copy.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/batching/sequence.h"

namespace switchyard::batching {

struct RankStats {
  int32_t running = 0;
  int32_t blocks_total = 0;
  int32_t blocks_used = 0;    // referenced by sequences
  int32_t blocks_cached = 0;  // not referenced, but findable by hash
};

struct SchedulerStats {
  int32_t running = 0;           // sequences that hold a slot and are not finished
  int32_t waiting = 0;           // sequences in the queue, preempted ones included
  int32_t waiting_requests = 0;  // requests with a choice in the queue
  int64_t waiting_tokens = 0;
  int32_t in_flight = 0;  // plans
  std::vector<RankStats> ranks;
  // Totals since construction:
  int64_t submitted = 0;           // requests accepted
  int64_t refused = 0;             // requests refused because the queue was full
  int64_t refused_for_tokens = 0;  // of these, because of its tokens and not of its requests
  int64_t preemptions = 0;
  int64_t outlived_losses = 0;  // sequences that went back to the queue when their group was lost
  int64_t rows_given = 0;
  int64_t prefix_query_tokens = 0;                    // known tokens of sequences when they were started with reuse
  int64_t prefix_hit_tokens = 0;                      // of those, found
  int64_t evictions = 0;                              // cached blocks that were given a new content
  int64_t prompt_tokens = 0;                          // of sequences whose prompt was computed
  int64_t generated_tokens = 0;                       // token events
  std::array<int64_t, kNumFinishReasons> finished{};  // sequences, by FinishReason

  // 0..1: used blocks / all blocks.
  double KvUsage() const {
    int64_t used = 0, total = 0;
    for (const RankStats& rank : ranks) {
      used += rank.blocks_used;
      total += rank.blocks_total;
    }
    return total == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(total);
  }
};

}  // namespace switchyard::batching
