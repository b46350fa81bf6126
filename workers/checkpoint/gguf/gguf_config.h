// A GGUF model's config.json: the text that HuggingFace's checkpoint of the same model would have, from the metadata
// and the shapes of tensors, so that ReadModelConfig's reader stays the only one.
//
// What converters do not write is as llama.cpp has it: whether routing weights are renormalized (by family, where
// expert_weights_norm is missing), no sliding window and no clamp of q, k and v where their keys are missing.  Scales
// of frequencies (rope_freqs.weight, by which Llama 3's RoPE is stored) become RoPE of type longrope.
//
// Thread-safe (pure).  Blocks on the disk where rope_freqs.weight is there.  Errors: InvalidArgument, Unimplemented,
// with the file's name and the key's or tensor's.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/gguf/gguf_file.h"

namespace switchyard::checkpoint {

absl::StatusOr<std::string> GgufConfigText(const GgufCheckpoint& checkpoint);

}  // namespace switchyard::checkpoint
