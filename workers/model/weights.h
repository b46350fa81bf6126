// The weights that one rank holds: replicated parts and its own experts, packed for the GEMMs.
//
// Owned by the Model; filled once by the loader; const afterwards, so that any thread may read.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "workers/model/config.h"
#include "workers/ops/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

// Experts [begin, end) of every layer.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

// Rank `rank`'s experts: ⌈E/R⌉ each, in order; the last ranks may have fewer, or none.
ExpertRange ExpertsOfRank(int64_t num_experts, int rank, int world);

struct AttentionWeights {
  Tensor norm;             // [H] gamma before attention
  Weight qkv;              // [N*D + 2*Nkv*D, H]: rows of q, then k, then v
  Tensor qkv_bias;         // [N*D + 2*Nkv*D] or empty
  Tensor q_norm, k_norm;   // [D], or [N*D] and [Nkv*D], or empty
  Weight o;                // [H, N*D]
  Tensor o_bias;           // [H] or empty
};

// A SwiGLU feed-forward: an expert, a shared expert or a dense MLP.
struct FfnWeights {
  Weight gate_up;  // gate and up fused in the order that GatedFfn wants (weight.h)
  Weight down;     // [H, F]
};

struct MoeWeights {
  Weight router;                    // [E, H]
  std::vector<FfnWeights> experts;  // [El] of ExpertsOfRank
  std::optional<FfnWeights> shared;
  Weight shared_gate;               // [1, H] if shared
};

struct LayerWeights {
  AttentionWeights attention;
  Tensor ffn_norm;                  // [H] gamma before the feed-forward
  std::optional<FfnWeights> dense;  // exactly one of the two
  std::optional<MoeWeights> moe;
};

struct ModelWeights {
  ExpertRange experts;
  Tensor embedding;                 // [V, H]
  std::vector<LayerWeights> layers; // [L]
  Tensor final_norm;                // [H]
  Weight lm_head;                   // [V, H]

  int64_t bytes() const;
};

}  // namespace switchyard
