// In which type a model's weights are held: by a flag, by its config, or as its checkpoint has them.  Thread-safe
// (pure).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/params.h"
#include "workers/ops/gemm/quantized/weight_format.h"
#include "workers/tensor/dtype.h"

namespace switchyard::model {

// The formats of few bits in which matrices of layers are held as the checkpoint has them: a layer's matrix in the one
// format of all tensors that it is made of, or all experts' are (MatrixReader::own_format), lm_head in 6 bits at least;
// where these have several formats, or one that no weight can have, q6_k or q8_0 if it is near all (near_format); else
// kPlain.  A kind of matrices that a layer lacks has other layers' format, or that of another kind.
// params: those of `weights`.
ops::WeightFormats StoredFormats(const std::vector<Param>& params, const ModelWeights& weights);

// fp32, bf16, fp16, fp64.  InvalidArgument for another name.
absl::StatusOr<DType> NamedDType(absl::string_view name);
// The dtype of --dtype=NAME: auto (the config's dtype, else that of the checkpoint's embedding, bf16 where that is
// quantized), or as NamedDType.
absl::StatusOr<DType> ServingDType(absl::string_view name, const ModelConfig& config,
                                   const checkpoint::Checkpoint& checkpoint);

}  // namespace switchyard::model
