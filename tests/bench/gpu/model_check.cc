#include "tests/bench/gpu/model_check.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/model/decode_logits.h"

namespace switchyard {
namespace {

constexpr size_t kLayers = 2;

}  // namespace

absl::Status CheckModel(const Bench& bench, const model::ModelConfig& config) {
  model::ModelConfig shallow = config;
  shallow.layers.resize(std::min(shallow.layers.size(), kLayers));
  const model::DecodeLogitsOptions options = {.chunk = bench.Pick(2048, 16), .decodes = bench.Pick(12, 4)};
  const std::vector<std::vector<int32_t>> sequences = {model::RandomTokens(bench.Pick(4096, 40), config.vocab_size, 1),
                                                       model::RandomTokens(bench.Pick(76, 9), config.vocab_size, 2)};
  Tensor got, want;
  const auto logits = [&](const Stream& stream, DType dtype) -> absl::StatusOr<Tensor> {
    std::unique_ptr<model::Model> model;
    ASSIGN_OR_RETURN(model, model::MakeDummyModel(stream, shallow, dtype));
    return model::DecodeLogits(stream, model.get(), options, sequences);
  };
  ASSIGN_OR_RETURN(got, logits(bench.stream(), DType::kBf16));
  ASSIGN_OR_RETURN(want, logits(bench.cpu(), DType::kF32));
  std::vector<double> differences;
  for (int64_t row = 0; row < want.dim(0); ++row) {
    Difference difference;
    difference.AddRow(got, want, row);
    RETURN_IF_ERROR(difference.Check(absl::StrCat(config.model_type, ": logits of row ", row), 0.5));
    differences.push_back(difference.relative());
  }
  const auto middle = differences.begin() + want.dim(0) / 2;
  std::nth_element(differences.begin(), middle, differences.end());
  bench.Emit(
      {{"kind", "checked"}, {"model", config.model_type}, {"layers", shallow.layers.size()}, {"median", *middle}});
  if (*middle <= 0.02) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(config.model_type, ": logits differ from the CPU's by ", *middle,
                                          " of their norm (median of the rows), limit 0.02"));
}

}  // namespace switchyard
