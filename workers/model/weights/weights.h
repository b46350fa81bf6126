// The weights of one rank, the replicated parts and its own experts, packed for the GEMMs.
// The loader fills them once; const afterwards, so that any thread may read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "workers/model/config/config.h"
#include "workers/moe/experts/packed_expert.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

// A low-rank adapter (LoRA) of a projection y = W x: y[first_column, first_column + n) += scale * b (a x).
struct AdapterWeights {
  ops::Weight a;  // [r, k]
  ops::Weight b;  // [n, r]
  int64_t first_column = 0;
  double scale = 1;
  const char* projection = "";  // "q_proj"
};

// One adapter's matrices in one layer, of the adapters that rows choose from (served_adapters.h).
struct LayerAdapter {
  std::vector<AdapterWeights> qkv = {};  // at most one each for q, k and v
  std::vector<AdapterWeights> o = {};    // at most one
};

struct AttentionWeights {
  Tensor norm;            // [H] gamma before attention
  Tensor norm_bias;       // [H] its beta; empty: RMSNorm, and so below
  ops::Weight qkv;        // [N*D + 2*Nkv*D, H]: rows of q, then k, then v
  Tensor qkv_bias;        // [N*D + 2*Nkv*D]; empty: none
  Tensor q_norm, k_norm;  // [D], or [N*D] and [Nkv*D]; empty: none
  ops::Weight o;          // [H, N*D]
  Tensor o_bias;          // [H]; empty: none
  Tensor sinks;           // [N] AccDType; empty: none
  // In training alone (adapters.h).
  std::vector<AdapterWeights> qkv_adapters;  // of qkv, at most one each for q, k and v
  std::vector<AdapterWeights> o_adapters;    // of o, at most one
};

// A feed-forward: an expert, a shared expert or a dense MLP.
struct FfnWeights {
  ops::Weight gate_up = {};  // [2F, H] gated panels; GELU: [F, H]
  ops::Weight down = {};     // [H, F]
  Tensor up_bias = {};       // [F]; empty: none, or (SwiGLU) in gate_up itself
  Tensor down_bias = {};     // [H]; empty: none, or in down
  // Of an expert in training (adapters.h); a [r, H] and b [2F, r], a [r, F] and b [H, r].
  std::optional<AdapterWeights> gate_up_adapter = {}, down_adapter = {};
};

struct MoeWeights {
  ops::Weight router;               // [E, H], with its bias if logits have one
  Tensor router_bias;               // [E] AccDType: of the choice alone (ops/router.h); empty: none
  std::vector<FfnWeights> experts;  // [El] the residents, by slot; none: an expert store has them
  std::optional<FfnWeights> shared;
  ops::Weight shared_gate;  // [1, H] if shared
};

struct LayerWeights {
  AttentionWeights attention;
  Tensor ffn_norm;                  // [H] gamma before the feed-forward
  Tensor ffn_norm_bias;             // [H]
  std::optional<FfnWeights> dense;  // exactly one of the two
  std::optional<MoeWeights> moe;
};

struct ModelWeights {
  std::vector<int32_t> residents;    // [El] experts that this rank computes, of every MoE layer
  Tensor embedding;                  // [V, H]; empty: rows come from lm_head (HasEmbedding)
  Tensor positions;                  // [context, H] learned; empty: none
  std::vector<LayerWeights> layers;  // [L]
  Tensor final_norm;                 // [H]
  Tensor final_norm_bias;            // [H]
  ops::Weight lm_head;               // [V, H]
  // [L, adapters] in serving alone: those that rows choose from; empty: none.
  std::vector<std::vector<LayerAdapter>> adapters;
  // The memory of all of them on a device, of all but routed experts and adapters on a host; empty: each has its own.
  Buffer arena;

  // As held, packed.
  int64_t bytes() const;
};

// Where the weights of routed experts go.
struct ExpertSpace {
  bool none = false;  // nowhere: a store provides them
  // Zeroed host memory for this expert's packed_expert.h; layer: among those with experts.  Null: memory of their own;
  // a null place: this expert's weights stay empty.
  std::function<char*(int layer, int32_t expert)> place = nullptr;
  DeviceKind packing = DeviceKind::kCpu;  // their form at that place
};

// The routed experts as the device's products take them.
moe::ExpertForms ExpertFormsOf(const ModelConfig& config, const ops::WeightType& type, DeviceKind device);

// Unimplemented if the routed experts do not fit packed_expert.h: they cannot be in an ExpertSpace's place, nor in a
// store.
absl::Status CheckStorable(const ModelConfig& config);

// Allocates the weights of a rank with these residents, with undefined contents: on a device from one allocation, each
// at a multiple of kDeviceAlignment; the sum is WeightBytes (memory_plan.h).  in_arena: on a host all but the routed
// experts come from one allocation, too, so that workers can share it.
// REQUIRES: residents are experts of the config; on the CPU CheckMemory has passed; with a place CheckStorable, too.
// Errors: ResourceExhausted on a device, with needed and available bytes.
absl::StatusOr<ModelWeights> AllocateWeights(const ModelConfig& config, ops::WeightType type,
                                             std::vector<int32_t> residents, Device device = Device::Cpu(),
                                             const ExpertSpace& space = {}, bool in_arena = false);

// Allocates so many routed experts of one layer, with undefined contents.
absl::StatusOr<std::vector<FfnWeights>> AllocateExperts(const ModelConfig& config, DType dtype, int64_t count,
                                                        Device device = Device::Cpu());

}  // namespace switchyard::model
