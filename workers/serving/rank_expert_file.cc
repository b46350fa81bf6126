#include "workers/serving/rank_expert_file.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/model/weights/loader.h"
#include "workers/moe/experts/device_expert_copier.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kMostChunkBytes = 2 << 20;

}  // namespace

moe::PackedExpert PackedExpertOf(const model::ModelConfig& config, DType dtype, DeviceKind device) {
  return {config.hidden, config.expert_intermediate, dtype, device};
}

absl::StatusOr<std::unique_ptr<moe::ExpertCopier>> CopierFrom(const moe::ExpertFile& file, Device device) {
  return moe::MakeExpertCopier(device, {.begin = file.data(), .bytes = file.bytes()});
}

int64_t CopyChunkBytes(const moe::PackedExpert& expert) {
  return std::min(kMostChunkBytes, expert.bytes / kChunksPerCopy);
}

absl::StatusOr<std::unique_ptr<moe::ExpertFile>> OpenRankExpertFile(const RankExpertFileInput& input,
                                                                    moe::ExpertFile::Progress progress) {
  const model::ModelConfig& config = *input.config;
  RETURN_IF_ERROR(model::CheckStorable(config));
  moe::ExpertFileOptions options;
  options.dir = input.dir;
  options.weights = input.weights;
  options.expert = PackedExpertOf(config, input.dtype, input.device.kind);
  options.device = input.device.kind;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  options.num_experts = static_cast<int>(config.num_experts);
  options.available_bytes = input.available_bytes;
  const auto fill = [&](moe::ExpertFile::Places* places) {
    model::LoadOptions load;
    load.dtype = input.dtype;
    load.device = input.device;
    load.residents.resize(static_cast<size_t>(config.num_experts));
    std::iota(load.residents.begin(), load.residents.end(), 0);
    load.num_threads = input.num_threads;
    load.progress = [&](int64_t done, int64_t total) {
      places->Report(done);
      return progress(done, total);
    };
    const auto place = [&](int layer, int32_t expert) { return places->At(layer, expert); };
    if (input.checkpoint == nullptr) return model::MakeDummyExperts(config, std::move(load), place);
    return model::LoadExperts(*input.checkpoint, config, std::move(load), place);
  };
  absl::StatusOr<std::unique_ptr<moe::ExpertFile>> file = moe::ExpertFile::Open(options, fill, progress);
  // Neither the network's fault nor another worker's: another try with this directory would fail likewise.
  if (absl::IsUnavailable(file.status()) || absl::IsPermissionDenied(file.status())) {
    return absl::InvalidArgumentError(absl::StrCat("--expert_file_dir=", options.dir, ": ", file.status().message()));
  }
  return file;
}

}  // namespace switchyard::worker
