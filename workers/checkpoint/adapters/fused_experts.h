// The adapters of a layer's experts in PEFT's form: it adapts the tensors that have all experts of a layer,
// experts.gate_up_proj [E, 2F, H] and experts.down_proj [E, H, F], by `target_parameters`.  Of each it saves one
//
//   lora_A [E * r, k]   row e * r + j is row j of expert e's A
//   lora_B [n, r * E]   column j * E + e is column j of expert e's B
//
// by the module's name, "….layers.0.mlp.experts"; if both are adapted, gate_up_proj's is "….experts.base_layer", as its
// wrapper is inside down_proj's.  gate and up of an expert share an A.  Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/adapters/lora_adapter.h"

namespace switchyard::checkpoint {

inline constexpr char kGateUpProj[] = "gate_up_proj", kDownProj[] = "down_proj";

// Behind "….layers.0".
inline constexpr char kFusedExperts[] = ".mlp.experts", kInnerFusedExperts[] = ".mlp.experts.base_layer";

inline int64_t FusedRowOfA(int64_t expert, int64_t j, int64_t rank) { return expert * rank + j; }
inline int64_t FusedColumnOfB(int64_t expert, int64_t j, int64_t num_experts) { return j * num_experts + expert; }

// An expert's matrix in LoraAdapter::matrices(): "model.layers.0.mlp.experts.3.gate_up_proj".
inline std::string ExpertMatrixName(absl::string_view layer, int64_t expert, absl::string_view projection) {
  return absl::StrCat(layer, kFusedExperts, ".", expert, ".", projection);
}

// Adds a matrix of each expert.  fused: rank is an expert's, a [E * rank, columns] and b [rows, rank * E] are all
// experts'.  layer: "model.layers.0".
// REQUIRES: a and b are of num_experts.
void SplitExperts(absl::string_view layer, absl::string_view projection, const AdaptedMatrix& fused,
                  int64_t num_experts, std::map<std::string, AdaptedMatrix>* to);

}  // namespace switchyard::checkpoint
