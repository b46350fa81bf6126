// Finds tensors of a checkpoint that a model does not use: harmless ones, or the sign of a wrong config.  Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/params.h"

namespace switchyard::model {

// Their names.  Experts of other ranks count as used.
std::vector<std::string> UnusedTensors(const checkpoint::Checkpoint& checkpoint, const std::vector<Param>& params);
// "2 tensors of the checkpoint are not part of OlmoeForCausalLM: a, b", with some of the names.
std::string UnusedText(const std::vector<std::string>& unused, const ModelConfig& config);

// InvalidArgument if the checkpoint has tensors that the model does not use, which training would silently lose, with
// some names and the likely cause.  Allows what transformers does not use either: the untied copy of a tied head, and
// buffers of old versions.  Unimplemented: the checkpoint is quantized, NoQuantizedTraining's.
absl::Status CheckAllUsed(const checkpoint::Checkpoint& checkpoint, const ModelConfig& config,
                          const std::vector<Param>& params);

}  // namespace switchyard::model
