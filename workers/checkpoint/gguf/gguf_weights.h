// A GGUF model as the rest of the workers know models: files of tensors by HuggingFace's names, and config.json.
//
// Blocks on the disk.  Errors, each with a file's name: those of GgufCheckpoint, ListGgufModelTensors, GgufConfigText.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"
#include "workers/checkpoint/tensors/weights_file.h"

namespace switchyard::checkpoint {

// The file, or of a split model all of them.
absl::StatusOr<std::vector<std::unique_ptr<WeightsFile>>> OpenGgufWeights(const std::string& path);

// The small files of a model at `path`: its directory's, or a GGUF file's config.json (gguf_config.h).
absl::StatusOr<ModelDir> OpenModelFiles(const std::string& path);

}  // namespace switchyard::checkpoint
