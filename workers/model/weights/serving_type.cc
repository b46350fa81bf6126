#include "workers/model/weights/serving_type.h"

#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::model {
namespace {

// What a kind's matrices have in common.
class CommonFormat {
 public:
  void Add(const Param& param) {
    const checkpoint::MatrixReader* const matrix = param.matrix.get();
    const ops::WeightFormat own = matrix != nullptr ? matrix->own_format() : ops::WeightFormat::kPlain;
    const ops::WeightFormat near = matrix != nullptr ? matrix->near_format() : ops::WeightFormat::kPlain;
    alike_ &= own_.value_or(own) == own;
    own_ = own;
    near_ &= near != ops::WeightFormat::kPlain;
    in_six_bits_ &= near == ops::WeightFormat::kQ6_K;
  }
  ops::WeightFormat Get() const {
    if (!own_.has_value()) return ops::WeightFormat::kPlain;
    if (alike_ && *own_ != ops::WeightFormat::kPlain) return *own_;
    if (!near_) return ops::WeightFormat::kPlain;
    return in_six_bits_ ? ops::WeightFormat::kQ6_K : ops::WeightFormat::kQ8_0;
  }

 private:
  std::optional<ops::WeightFormat> own_;  // of the last one
  bool alike_ = true, near_ = true, in_six_bits_ = true;
};

}  // namespace

ops::WeightFormats StoredFormats(const std::vector<Param>& params) {
  CommonFormat dense, gate_up, down, head;
  for (const Param& param : params) {
    const absl::string_view name = param.name;
    // All but routers and the gates of shared experts, which stay plain.
    if (param.weight == nullptr || param.bias) continue;
    if (!absl::StrContains(name, ".layers.")) {
      head.Add(param);
      continue;
    }
    if (param.shard == Shard::kExpert) {
      (param.weight->gated() ? gate_up : down).Add(param);
    } else if (!absl::EndsWith(name, "gate.weight") && !absl::EndsWith(name, "router.weight")) {
      dense.Add(param);
    }
  }
  return {dense.Get(), gate_up.Get(), down.Get(), ops::HeadFormat(head.Get())};
}

absl::StatusOr<DType> NamedDType(absl::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kF64}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype \"", Excerpt(name), "\": expected auto, fp32, bf16, fp16 or fp64"));
}

absl::StatusOr<DType> ServingDType(absl::string_view name, const ModelConfig& config,
                                   const checkpoint::Checkpoint& checkpoint) {
  if (name != "auto") return NamedDType(name);
  if (config.file_dtype.has_value()) return *config.file_dtype;
  constexpr char kEmbedding[] = "model.embed_tokens.weight";
  const checkpoint::TensorLocation embedding = checkpoint.Find(kEmbedding);
  if (config.quantization.has_value() && checkpoint::HasMatrix(checkpoint, kEmbedding)) {
    const absl::StatusOr<DType> dtype =
        embedding.file == nullptr ? DType::kBf16 : checkpoint::ParseSafetensorsDType(embedding.entry->dtype);
    return dtype.ok() && IsFloating(*dtype) ? *dtype : DType::kBf16;
  }
  if (embedding.file == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", kEmbedding, "\" is missing"));
  return checkpoint::ParseSafetensorsDType(embedding.entry->dtype);
}

}  // namespace switchyard::model
