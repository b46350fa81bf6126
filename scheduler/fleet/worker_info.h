// A worker as it registers with the server: where it runs, what it is for, and what the server must know of its model.
//
// Plain data; proto/link/fleet_codec.h is its form on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/base/memory_share.h"
#include "scheduler/fleet/group_ready.h"

namespace switchyard::fleet {

// WorkerInfo::role of a worker that trains alone, and of one that does both; empty: it serves.
inline constexpr char kRoleTrain[] = "train", kRoleBoth[] = "both";

struct WorkerInfo {
  std::string incarnation;  // drawn at the process's start: distinguishes a returned zombie from a new worker
  std::string host;
  int64_t pid = 0;
  std::string role;
  std::string device;  // "cpu", "cuda:0"
  std::string isa;     // of the kernels that it will run
  std::string weights_hash;
  std::string join_token;
  int local_index = -1;  // >= 0: the server's own n-th worker
  std::string collective_address;
  std::string metrics_address;  // HOST:PORT; empty: none
  // These describe its model; empty where it has none yet:
  std::string architecture;
  std::string dtype;
  std::string quantization;    // how it holds matrices: "int8", "q8_0, experts q4_1"; empty: in the dtype
  std::string kv_cache_dtype;  // of keys and values: "int8", "fp8"; empty: the dtype
  int32_t vocab_size = 0;
  int32_t context = 0;
  int32_t num_layers = 0;
  int32_t num_moe_layers = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t long_rope_above = 0;        // prompts of more tokens have keys of another kind; 0 = all prompts are alike
  int32_t min_rebalance_rows = 0;     // from how many rows on it pays that another worker computes them; 0 = never
  int64_t expert_bytes = 0;           // an expert of the largest layer, as it lies where it computes
  int32_t row_bytes = 0;              // one row on its way to an expert
  std::vector<std::string> adapters;  // names of those that requests choose from, in the order of their numbers
  std::optional<MemoryShare> expert_budget;  // none: it holds all of its experts where it computes
  // The server's own, never sent:
  std::string peer;               // the other end of its link, as gRPC names it
  bool also_trains = false;       // beside serving, where this server has jobs for it
  bool experts_in_place = false;  // any worker of its group computes any expert, all of which are on one machine
  LinkFit links;                  // its group's

  bool operator==(const WorkerInfo& other) const = default;
};

}  // namespace switchyard::fleet
