// A folder of low-rank adapters as PEFT saves it (adapter_config.json, adapter_model.safetensors), which a server
// merges into the weights that it loads: W' = W + scale B A.
//
// All of it is read, so it should be small beside its model: at most kMaxAdapterBytes.  Immutable.
// Errors (NotFound, InvalidArgument, Unimplemented): what a file has that is not understood, with file and key, or
// tensor, expected and found.  Does not do: adapters of embeddings, DoRA, biases, saved modules.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::checkpoint {

inline constexpr int64_t kMaxAdapterBytes = int64_t{4} << 30;

struct AdaptedMatrix {
  int64_t rank = 0, rows = 0, columns = 0;  // of W: [rows, columns]
  double scale = 1;
  std::vector<float> a;  // [rank, columns]
  std::vector<float> b;  // [rows, rank]
};

class LoraAdapter {
 public:
  static absl::StatusOr<std::unique_ptr<const LoraAdapter>> Open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  // By the name of W, "model.layers.0.self_attn.q_proj.weight"; of fused experts, which PEFT adapts together, each has
  // its own, "model.layers.0.mlp.experts.3.gate_up_proj" (fused_experts.h).
  const std::map<std::string, AdaptedMatrix>& matrices() const { return matrices_; }
  bool adapts_experts() const;
  // 16 hex digits over all of it.
  std::string Hash() const;

 private:
  LoraAdapter() = default;

  std::string folder_;
  std::map<std::string, AdaptedMatrix> matrices_;
};

}  // namespace switchyard::checkpoint
