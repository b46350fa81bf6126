// Low-rank adapters (LoRA, Hu et al. 2021).  Of a model that is trained, those of its attention and of its experts:
// their memory, and the table of their parameters by PEFT's names,
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".  PEFT has the adapters of a layer's experts in one
// tensor (fused_experts.h); here each expert has its own, as of a module "….layers.0.mlp.experts.3.gate_up_proj".  Of a
// model that is served, how a folder's are merged into its weights.  Thread-safe; the first on the CPU only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/params.h"
#include "workers/model/weights/weights.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// A projection of attention that may have an adapter: rows [first_row, first_row + n) of a weight [, k].
struct AdaptedProjection {
  const char* name;  // "q_proj"
  bool is_out;       // of o, not of q, k and v together
  int64_t first_row, n, k;
};
std::vector<AdaptedProjection> AdaptedProjections(const ModelConfig& config);

struct AdapterDesc {
  int64_t rank = 0;
  double scale = 1;
  std::vector<std::string> targets = {};  // of q_proj, k_proj, v_proj, o_proj; gate_up_proj, down_proj of experts
};

// InvalidArgument: a target that is none of these, or experts that are not plain SwiGLU; adapters that no server reads
// (more than kMaxAdapterBytes in fp32).
absl::Status CheckAdapterTargets(const ModelConfig& config, const AdapterDesc& desc);

// Adds adapters with undefined contents to every layer.  REQUIRES: weights is from AllocateWeights with this config and
// has none.  Errors: CheckAdapterTargets'; ResourceExhausted.
absl::Status AllocateAdapters(const ModelConfig& config, DType dtype, const AdapterDesc& desc, ModelWeights* weights);

// The params of a rank's adapters, layer by layer, each a whole weight: none if the model has no adapters.  Borrows
// weights.
std::vector<Param> ListAdapterParams(ModelWeights* weights);
// The same without places and of all experts, for adapters that are to be made: names and shapes.
std::vector<Param> DescribeAdapterParams(const ModelConfig& config, const AdapterDesc& desc);
bool HasAdapters(const ModelWeights& weights);

// Lets the params that a folder's adapter adapts be read with it added to them.  Borrows the adapter.
// some: the params are not all of the model's, so the adapter may also be for others.
// InvalidArgument: it adapts what the model does not have, in another shape, or another number of experts, with both.
absl::Status MergeAdapter(const ModelConfig& config, const checkpoint::LoraAdapter& adapter,
                          const checkpoint::Checkpoint& checkpoint, std::vector<Param>* params, bool some = false);

// Whether a parameter is an adapter's first matrix, A [r, k], or its second, B [n, r].
bool IsAdapterA(const Param& param);
bool IsAdapterB(const Param& param);

}  // namespace switchyard::model
