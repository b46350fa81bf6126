// Requests and their outputs inside the server: plain values, validated and complete, without proto types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/batching/event.h"
#include "scheduler/batching/state/request_table.h"
#include "scheduler/batching/step.h"

namespace switchyard::server {

class ObservedRequest;  // observe/observed_request.h

// The served model as workers describe it, with the server's limits.  Constant.
struct ServedModel {
  std::string name;
  std::string architecture;
  std::string dtype;
  std::string quantization;    // of its matrices; empty: none
  std::string kv_cache_dtype;  // of keys and values; empty: the dtype
  std::string weights_hash;
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // tokens, prompt and output together
  int32_t num_layers = 0;
  int32_t num_moe_layers = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t num_workers = 0;
  std::vector<int32_t> eos_token_ids;
  std::vector<std::string> adapters;  // that requests choose from; adapter i of a request is [i - 1]
};

// The scheduler's request (the engine sets its `id`) with the fields that only the server uses.
struct InferenceRequest : batching::Request {
  std::string request_id;      // the client's
  std::string owner;           // name of its key; empty: the server has no keys
  int32_t num_moe_layers = 0;  // of the served model, for ExpertPaths
  int32_t top_k = 0;           // likewise
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool has_text = true;  // false: the model has no tokenizer; token ids only
  absl::Time arrival;
  std::shared_ptr<ObservedRequest> observed;  // shared: with the call; null: nobody observes it
};

// The experts that consecutive positions chose.
struct ExpertPaths {
  int32_t first_position = 0;
  int32_t num_moe_layers = 0;    // L, of the served model
  int32_t top_k = 0;             // K
  std::vector<int16_t> experts;  // [rows, L, K]; empty = none

  size_t ids_per_row() const { return static_cast<size_t>(num_moe_layers) * static_cast<size_t>(top_k); }
};

// A piece of one choice's output.  Pieces for a slow reader are joined (token_stream.h).
struct OutputChunk {
  int32_t choice = 0;
  int32_t index = 0;  // of the first token
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<batching::PositionLogprobs> logprobs;
  std::vector<batching::PositionLogprobs> prompt_logprobs;
  ExpertPaths expert_paths;
  bool finished = false;
  // Set for a finished choice only:
  batching::FinishReason reason = batching::FinishReason::kNone;
  int32_t stop_token = -1;
  std::string stop_string;
  batching::SequenceUsage usage;
  batching::SequenceTimings timings;
};

}  // namespace switchyard::server
