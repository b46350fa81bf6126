// The files of a quantized checkpoint: shards of safetensors, their index, config.json, and what is copied.
// Errors: those of the files that are read; InvalidArgument for a tensor or text that cannot be written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/base/io/model_dir.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/quantize/group_codes.h"

namespace switchyard::quantize {

struct NamedMatrix {
  std::string name;  // "….q_proj.weight"
  QuantizedMatrix matrix;
};

// "model-00003-of-00017.safetensors"; number from 1.
std::string ShardName(int64_t number, int64_t count);

// NAME.weight_packed, NAME.weight_scale and NAME.weight_shape of each.  Borrows the matrices.
std::vector<checkpoint::TensorToWrite> PackedTensors(absl::Span<const NamedMatrix> matrices);

// All tensors of the checkpoint but `consumed`, as they are, under their names in `renamed` where they have one there.
// Borrows the checkpoint.  stop: asked between pieces; true ends writing with Cancelled.
// Unimplemented: a tensor of a dtype that is not written.
absl::StatusOr<std::vector<checkpoint::TensorToWrite>> PlainTensors(
    const checkpoint::Checkpoint& checkpoint, const absl::btree_set<std::string>& consumed,
    const absl::btree_map<std::string, std::string>& renamed, const std::function<bool()>& stop);

// model.safetensors.index.json.  shards: [s] the names of shard s + 1's tensors.
std::string IndexText(absl::Span<const std::vector<std::string>> shards, int64_t total_bytes);

// The config.json with its quantization_config: all linear modules but `plain_modules`.
absl::StatusOr<std::string> QuantizedConfig(absl::string_view config_text, const GroupFormat& format,
                                            const std::vector<std::string>& plain_modules);

// The other files of the model that belong to it: tokenizer, chat templates, generation_config.json, licence, as they
// are; not weights, nor indices and manifests of them, nor config.json, nor pages about it.  InvalidArgument: one has
// more than 64 MB.
absl::StatusOr<std::vector<checkpoint::CheckpointFile>> CopiedFiles(const ModelDir& model);

}  // namespace switchyard::quantize
