// A folder of low-rank adapters as PEFT saves it (adapter_config.json, adapter_model.safetensors): W' = W + scale B A.
// A server merges one into the weights that it loads, or holds several beside them.
//
// All of it is read and stays in memory, in fp32; while it is read, the adapters of one layer's experts are there once
// more, as the file has them.  Immutable.
// Errors (NotFound, InvalidArgument, Unimplemented): what a file has that is not understood, with file and key, or
// tensor, expected and found.  Does not do: adapters of embeddings, DoRA, biases, saved modules.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::checkpoint {

// Of an adapter's values in fp32: what a job may train is what a server reads.
inline constexpr int64_t kMaxAdapterBytes = int64_t{64} << 30;

struct AdaptedMatrix {
  int64_t rank = 0, rows = 0, columns = 0;  // of W: [rows, columns]
  double scale = 1;
  std::vector<float> a;  // [rank, columns]
  std::vector<float> b;  // [rows, rank]
};

class LoraAdapter {
 public:
  // available: bytes of memory that it may use.
  // Errors: also InvalidArgument, its values are more than kMaxAdapterBytes; ResourceExhausted, more than available.
  static absl::StatusOr<std::unique_ptr<const LoraAdapter>> Open(
      const std::string& folder, int64_t available = std::numeric_limits<int64_t>::max());

  const std::string& folder() const { return folder_; }
  // By the name of W, "model.layers.0.self_attn.q_proj.weight"; of fused experts, which PEFT adapts together, each has
  // its own, "model.layers.0.mlp.experts.3.gate_up_proj" (fused_experts.h).
  const std::map<std::string, AdaptedMatrix>& matrices() const { return matrices_; }
  bool adapts_experts() const;
  // Experts of a layer that it is for, by its fused tensors; 0: it has none.
  int64_t num_experts() const { return num_experts_; }
  // 16 hex digits over all of it.
  const std::string& Hash() const { return hash_; }

 private:
  LoraAdapter() = default;

  std::string folder_;
  std::map<std::string, AdaptedMatrix> matrices_;
  int64_t num_experts_ = 0;
  std::string hash_;
};

}  // namespace switchyard::checkpoint
