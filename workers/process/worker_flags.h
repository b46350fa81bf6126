// The flags of switchyard-worker.
#pragma once

#include <cstdint>
#include <string>

#include "proto/support/channel_tls.h"
#include "scheduler/base/flags/flag_set.h"
#include "scheduler/offload/expert_budget.h"
#include "workers/serving/rank_load_predictor.h"

namespace switchyard::worker {

// The flags as they were given; role_flags.h says what they mean for a role.
struct WorkerFlags {
  std::string server = "127.0.0.1:50053";
  std::string role = "serve";
  std::string address = "auto";
  std::string join_token_file;
  rpc::TlsFiles tls;
  bool insecure = false;

  std::string model;
  std::string adapter;
  std::string adapters;
  std::string dtype = "auto";
  std::string quantization = "auto";
  std::string kv_cache_dtype = "auto";
  std::string load_format = "auto";

  std::string device = "cpu";
  int threads = 0;
  double gpu_memory_fraction = 0.9;
  bool deterministic = false;
  bool cuda_graphs = true;

  offload::ExpertBudgetOptions experts;
  ForecastOptions forecast;

  std::string dataset_root, checkpoint_root;
  std::string train_offload_dir;

  int metrics_port = -1;
  std::string metrics_host = "127.0.0.1";

  bool pack_experts = false;
  bool check_job = false;
  int check_ranks = 0;
  int local_index = -1;
  std::string server_socket;
  std::string refusal_file;
};

// Marks of flags that mean nothing to another role, or without a GPU.
inline constexpr uint32_t kOfServing = 1;
inline constexpr uint32_t kOfTraining = 2;
inline constexpr uint32_t kOfGpus = 4;
// Of flags that a server gives to the workers that it starts, and nobody else.
inline constexpr uint32_t kSetByServer = 8;

// The flags set *values, which has to outlive them.
FlagSet FlagsOfWorker(WorkerFlags* values);

}  // namespace switchyard::worker
