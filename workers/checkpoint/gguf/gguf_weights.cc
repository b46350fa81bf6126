#include "workers/checkpoint/gguf/gguf_weights.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "scheduler/base/gguf/gguf_file.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/gguf/gguf_config.h"
#include "workers/checkpoint/gguf/gguf_names.h"

namespace switchyard::checkpoint {

absl::StatusOr<std::vector<std::unique_ptr<WeightsFile>>> OpenGgufWeights(const std::string& path) {
  ASSIGN_OR_RETURN(GgufCheckpoint checkpoint, GgufCheckpoint::Open(path));
  ASSIGN_OR_RETURN(const std::vector<GgufModelTensor> found, ListGgufModelTensors(checkpoint));
  absl::flat_hash_map<std::string, std::vector<NamedTensor>> tensors;  // by file
  for (const GgufModelTensor& each : found) {
    tensors[each.file->name()].emplace_back(each.name, TensorEntry{.dtype = each.format->name,
                                                                   .shape = each.shape,
                                                                   .begin = each.begin,
                                                                   .bytes = each.bytes,
                                                                   .interleaved_head = each.interleaved_head});
  }
  std::vector<std::unique_ptr<WeightsFile>> files;
  for (std::unique_ptr<GgufFile>& file : std::move(checkpoint).ReleaseFiles()) {
    std::vector<NamedTensor> own = std::move(tensors[file->name()]);
    std::sort(own.begin(), own.end(),
              [](const NamedTensor& a, const NamedTensor& b) { return a.second.begin < b.second.begin; });
    std::string header = *file->header().bytes;
    files.push_back(std::make_unique<WeightsFile>(std::move(*file).ReleaseFile(), std::move(header), std::move(own)));
  }
  return files;
}

absl::StatusOr<ModelDir> OpenModelFiles(const std::string& path) {
  if (!IsGgufFile(path)) return ModelDir::Open(path);
  ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(path));
  ASSIGN_OR_RETURN(std::string config, GgufConfigText(checkpoint));
  return ModelDir::OfTexts(path, {{"config.json", std::move(config)}});
}

}  // namespace switchyard::checkpoint
