#include "server/vllm_flags.h"

namespace switchyard::server {

std::map<std::string, std::string> AdviceForUsersOfVllm() {
  constexpr char kModel[] = "the model is given by --model=DIR";
  constexpr char kWorkers[] =
      "attention is data-parallel and experts are sharded over workers: --local_workers=N, and --workers=N with some "
      "on other machines";
  constexpr char kNone[] =
      "there is no tensor or pipeline parallelism; --local_workers=N shards experts over N workers";
  constexpr char kAdapters[] = "is not needed: workers hold all adapters of --adapters=NAME=DIR,NAME=DIR, of any rank";
  return {{"", kModel},
          {"-m", kModel},
          {"data_parallel_size", kWorkers},
          {"enable_expert_parallel", kWorkers},
          {"tensor_parallel_size", kNone},
          {"pipeline_parallel_size", kNone},
          {"-tp", kNone},
          {"-dp", kWorkers},
          {"gpu_memory_utilization", "is --gpu_memory_fraction here"},
          {"max_num_batched_tokens", "is --max_batched_tokens here"},
          {"enable_chunked_prefill", "prompts are always cut into chunks; --prefill_chunk bounds them"},
          {"enable_prefix_caching", "is --prefix_reuse here"},
          {"kv_cache_memory_bytes", "is --kv_cache_bytes here"},
          {"api_key", "keys are in a file: --api_keys_file"},
          {"ssl_certfile", "is --tls_cert here"},
          {"ssl_keyfile", "is --tls_key here"},
          {"ssl_ca_certs", "is --tls_client_ca here"},
          {"otlp_traces_endpoint", "is --otlp_endpoint here (over HTTP, not gRPC)"},
          {"enable_eplb", "is --placement=auto with --spare_slots here"},
          {"cpu_offload_gb", "is --expert_memory here: what stays in memory, of the experts"},
          {"enable_lora", "adapters are given by --adapters=NAME=DIR,NAME=DIR; requests ask for MODEL:NAME"},
          {"max_loras", kAdapters},
          {"max_cpu_loras", kAdapters},
          {"max_lora_rank", kAdapters},
          {"fully_sharded_loras", kAdapters},
          {"lora_modules", "is --adapters=NAME=DIR,NAME=DIR here; requests ask for MODEL:NAME"},
          {"enforce_eager", "is --cuda_graphs=false here"}};
}

}  // namespace switchyard::server
