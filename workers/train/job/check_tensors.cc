#include "workers/train/job/check_tensors.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/params.h"
#include "workers/model/weights/unused_tensors.h"
#include "workers/model/weights/weights.h"

namespace switchyard::train {
namespace {

constexpr int64_t kReadValues = 4 << 20;  // at a time

// Whether files of this size can have all weights, by a factor of two: nothing is allocated for a config.json that
// describes another model.
absl::Status CheckSize(const checkpoint::Checkpoint& checkpoint, const model::ModelConfig& config) {
  absl::int128 bytes = 0;
  for (const auto& file : checkpoint.files()) bytes += file->size();
  const absl::int128 wanted = model::WeightBytes(config, DType::kBf16, config.num_experts);
  if (wanted <= 2 * bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: describes a model of about ", static_cast<double>(wanted),
                   " bytes in bf16, the files of its weights have ", static_cast<double>(bytes)));
}

absl::Status CheckValues(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                         absl::Time deadline) {
  for (const model::Param& param : params) {
    const int64_t step = std::max<int64_t>(1, kReadValues / std::max<int64_t>(1, param.columns));
    for (int64_t row = 0; row < param.rows; row += step) {
      if (MonotonicNow() >= deadline) return absl::OkStatus();
      model::Param part = param;
      part.source_row += row;
      part.rows = std::min(step, param.rows - row);
      part.first_row = 0;
      part.weight = nullptr;
      ASSIGN_OR_RETURN(Tensor values, Tensor::Allocate(DType::kF32, Shape({part.rows, part.columns}), Device::Cpu()));
      part.tensor = &values;
      model::LoadOptions options;
      options.dtype = DType::kF32;
      RETURN_IF_ERROR(model::LoadParams(checkpoint, {part}, std::move(options)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensors(const checkpoint::Checkpoint& checkpoint, const model::ModelConfig& config,
                          absl::Duration limit) {
  const absl::Time deadline = MonotonicNow() + limit;
  RETURN_IF_ERROR(CheckSize(checkpoint, config));
  std::vector<int32_t> experts(static_cast<size_t>(config.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  ASSIGN_OR_RETURN(model::ModelWeights weights, model::AllocateWeights(config, DType::kBf16, std::move(experts)));
  ASSIGN_OR_RETURN(const std::vector<model::Param> params,
                   model::BuildParams(config, *model::FindFamily(config.model_type), checkpoint, &weights));
  RETURN_IF_ERROR(model::CheckAllUsed(checkpoint, config, params));
  return CheckValues(checkpoint, params, deadline);
}

}  // namespace switchyard::train
