// The server's flags that workers follow; they come with the answer to a registration.  Plain data;
// proto/link/fleet_codec.h is its form on the wire.
#pragma once

#include <cstdint>

#include "scheduler/placement/placement_settings.h"

namespace switchyard::fleet {

struct EngineSettings {
  int32_t block_size = 16;
  int64_t kv_cache_bytes = 0;  // per worker; 0 = the worker decides
  int32_t max_num_seqs = 1;    // slots per rank
  int32_t max_batched_tokens = 1;
  int32_t max_model_len = 0;   // 0 = the model's context
  int32_t train_yield_ms = 0;  // workers that also train: within which training must stop when a plan comes
  placement::PlacementSettings placement = {};  // of its experts; the same on all workers
  bool add_outputs = false;  // a rank adds its experts' outputs of a row before they travel: other bits

  bool operator==(const EngineSettings& other) const = default;
};

}  // namespace switchyard::fleet
