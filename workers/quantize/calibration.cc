#include "workers/quantize/calibration.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/forward/model_norm.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/quantize/gptq.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/machine_memory.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

constexpr int64_t kBatchRows = 2048;  // about, of a pass and of a product of inputs

// [rows.size(), H] of the named rows of x.
Tensor GatherRows(const TensorView& x, absl::Span<const int32_t> rows) {
  Tensor gathered(x.dtype(), {static_cast<int64_t>(rows.size()), x.dim(1)});
  const int64_t bytes = x.dim(1) * DTypeBytes(x.dtype());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(static_cast<char*>(gathered.view().raw()) + static_cast<int64_t>(i) * bytes, x.Rows(rows[i], 1).raw(),
                static_cast<size_t>(bytes));
  }
  return gathered;
}

// For each expert the rows that chose it.
std::vector<std::vector<int32_t>> RowsOfExperts(const TensorView& topk_idx, int64_t num_experts) {
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(num_experts));
  for (int64_t i = 0; i < topk_idx.dim(0); ++i) {
    for (int64_t k = 0; k < topk_idx.dim(1); ++k) {
      const int32_t expert = topk_idx.row<int32_t>(i)[k];
      if (expert >= 0) rows[static_cast<size_t>(expert)].push_back(static_cast<int32_t>(i));
    }
  }
  return rows;
}

// Puts what the matrix has become into its place in the layer.
absl::Status Replace(const Stream& stream, const Linear& linear, const QuantizedMatrix& matrix) {
  constexpr int64_t kRows = 32;
  absl::Status status;
  for (int64_t first = 0; first < linear.rows && status.ok(); first += kRows * 64) {
    const int64_t count = std::min(kRows * 64, linear.rows - first);
    const Tensor values(DType::kF32, {count, linear.columns});
    stream.pool().ParallelFor(count, kRows, [&](int64_t begin, int64_t end) {
      matrix.Read(first + begin, end - begin, values.view().row<float>(begin));
    });
    status = linear.weight->PackRows(linear.first_row + first, values);
  }
  return status;
}

}  // namespace

Calibration::Inputs::Inputs(const model::ModelConfig& config, DType dtype, int64_t rows, bool moe)
    : normed(dtype, {rows, config.hidden}), qkv(config.hidden), attended(config.q_width()) {
  if (moe) topk_idx = Tensor(DType::kI32, {rows, config.top_k});
}

absl::StatusOr<std::unique_ptr<Calibration>> Calibration::Create(const Stream& stream,
                                                                 const checkpoint::Checkpoint& checkpoint,
                                                                 const model::ModelConfig& config, DType dtype,
                                                                 const GroupFormat& format, Samples samples,
                                                                 CalibrationHooks hooks) {
  std::unique_ptr<Calibration> calibration(
      new Calibration(stream, checkpoint, config, format, std::move(samples), std::move(hooks)));
  const int64_t length = calibration->samples_.length;
  calibration->options_ = {.dtype = dtype, .length = length, .windows = std::max<int64_t>(kBatchRows / length, 1)};
  RETURN_IF_ERROR(calibration->CheckMemory());
  RETURN_IF_ERROR(calibration->EmbedAll());
  return calibration;
}

absl::Status Calibration::CheckMemory() const {
  const int64_t rows = samples_.calibration.num_rows(), held_out = samples_.held_out.num_rows();
  const int64_t widest = std::max({config_.hidden, config_.q_width(), config_.expert_intermediate,
                                   config_.dense_intermediate, config_.shared_intermediate});
  absl::int128 layer = 0;
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    layer = std::max(layer, model::WeightBytes(OneLayer(config_, i), options_.dtype, config_.num_experts));
  }
  const int64_t row_bytes = config_.hidden * DTypeBytes(AccDType(options_.dtype));
  absl::int128 needed = absl::int128(rows + 2 * held_out) * row_bytes + absl::int128(rows) * row_bytes;
  // The layer and its numbers, two sums of products (three of attention and a feed-forward's), a matrix and its errors.
  needed += layer + layer / 2 + 3 * absl::int128(8) * widest * widest + Gram::ScratchBytes(widest, kBatchRows) +
            absl::int128(4 * widest + 8 * 1024) * widest;
  const int64_t available = ReadMachineMemory().available_bytes();
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("calibration needs about ", static_cast<int64_t>(needed >> 20), " MiB for a layer and ", rows,
                   " rows of samples, ", available >> 20,
                   " MiB are free; give fewer --samples, or no --dataset: then weights are read a few rows at a time"));
}

absl::Status Calibration::EmbedAll() {
  const DType acc = AccDType(options_.dtype);
  rows_ = Tensor(acc, {samples_.calibration.num_rows(), config_.hidden});
  held_out_ = Tensor(acc, {samples_.held_out.num_rows(), config_.hidden});
  held_out_before_ = Tensor(acc, held_out_.shape());
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelPart> ends, ModelPart::LoadEnds(stream_, checkpoint_, config_, options_));
  RETURN_IF_ERROR(ends->Embed(samples_.calibration, rows_));
  RETURN_IF_ERROR(ends->Embed(samples_.held_out, held_out_));
  return CopyTensor(stream_, held_out_, held_out_before_);
}

void Calibration::Say(absl::string_view what, int64_t done, int64_t all) const {
  hooks_.say(absl::StrCat("layer ", layer_idx_ + 1, " of ", config_.num_layers(), ": ", what, " ", done, " of ", all));
}

absl::Status Calibration::RunAll(const Windows& windows, ModelPart* part, const TensorView& rows) {
  for (int64_t first = 0; first < rows.dim(0); first += part->max_rows()) {
    RETURN_IF_ERROR(CheckGoing());
    Say("outputs, row", first, rows.dim(0));
    RETURN_IF_ERROR(part->Run(windows, first, rows.Rows(first, part->BatchRows(windows, first)), nullptr));
  }
  return absl::OkStatus();
}

absl::Status Calibration::Collect(ModelPart* part, Inputs* inputs) {
  const model::LayerWeights& layer = *part->layer();
  model::SavedForward saved(part->config(), options_.dtype, model::SavePolicy::kAll);
  Tensor normed(options_.dtype, {part->max_rows(), config_.hidden});
  for (int64_t first = 0; first < rows_.dim(0); first += part->max_rows()) {
    RETURN_IF_ERROR(CheckGoing());
    Say("inputs, row", first, rows_.dim(0));
    const int64_t count = part->BatchRows(samples_.calibration, first);
    RETURN_IF_ERROR(part->Run(samples_.calibration, first, rows_.view().Rows(first, count), &saved));
    const model::SavedLayer kept = saved.layer(0);
    const TensorView x = normed.view().Rows(0, count);
    RETURN_IF_ERROR(
        model::Normalize(stream_, config_, {layer.attention.norm, layer.attention.norm_bias}, kept.residual_in, x));
    RETURN_IF_ERROR(inputs->qkv.Add(stream_, x));
    RETURN_IF_ERROR(inputs->attended.Add(stream_, kept.attended));
    RETURN_IF_ERROR(model::Normalize(stream_, config_, {layer.ffn_norm, layer.ffn_norm_bias}, kept.residual_mid,
                                     inputs->normed.view().Rows(first, count)));
    if (kept.moe != nullptr)
      RETURN_IF_ERROR(CopyTensor(stream_, kept.moe->topk_idx, inputs->topk_idx.view().Rows(first, count)));
  }
  return absl::OkStatus();
}

absl::Status Calibration::QuantizeWeight(const Layer& layer, ops::Weight* weight, const Gram* gram) {
  RETURN_IF_ERROR(CheckGoing());
  Tensor factor;
  if (gram != nullptr) {
    factor = Tensor(DType::kF64, gram->sums().shape());
    RETURN_IF_ERROR(CopyTensor(stream_, gram->sums(), factor));
    // Of inputs that are all zeros nothing can be learned.
    const absl::Status factored = FactorInPlace(stream_, kDamping, factor);
    if (!factored.ok() && !absl::IsFailedPrecondition(factored)) return factored;
    if (!factored.ok()) gram = nullptr;
  }
  for (size_t i = 0; i < layer.plan->linears.size(); ++i) {
    const Linear& linear = layer.plan->linears[i];
    if (linear.weight != weight) continue;
    const Tensor values(DType::kF32, {linear.rows, linear.columns});
    RETURN_IF_ERROR(linear.Read(0, linear.rows, values.data<float>()));
    QuantizedMatrix& matrix = (*layer.matrices)[i].matrix;
    matrix = QuantizedMatrix(format_, linear.rows, linear.columns);
    if (gram != nullptr) {
      RETURN_IF_ERROR(RoundByFactor(stream_, factor, values, &matrix));
    } else {
      stream_.pool().ParallelFor(linear.rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) RoundRow(values.view().row<float>(row), row, &matrix);
      });
    }
    RETURN_IF_ERROR(Replace(stream_, linear, matrix));
  }
  return absl::OkStatus();
}

absl::Status Calibration::QuantizeAttention(const Layer& layer, Inputs* inputs) {
  model::AttentionWeights& attention = layer.part->layer()->attention;
  RETURN_IF_ERROR(QuantizeWeight(layer, &attention.qkv, &inputs->qkv));
  return QuantizeWeight(layer, &attention.o, &inputs->attended);
}

absl::Status Calibration::QuantizeFfn(const Layer& layer, const Inputs& inputs, model::FfnWeights* ffn,
                                      const std::vector<int32_t>& rows) {
  if (static_cast<int64_t>(rows.size()) < kLeastRows) {
    RETURN_IF_ERROR(QuantizeWeight(layer, &ffn->gate_up, nullptr));
    return QuantizeWeight(layer, &ffn->down, nullptr);
  }
  const auto each_batch = [&](auto&& use) -> absl::Status {
    for (size_t first = 0; first < rows.size(); first += kBatchRows) {
      const size_t count = std::min<size_t>(kBatchRows, rows.size() - first);
      RETURN_IF_ERROR(use(GatherRows(inputs.normed, absl::MakeConstSpan(rows).subspan(first, count))));
    }
    return absl::OkStatus();
  };
  {
    Gram gram(config_.hidden);
    RETURN_IF_ERROR(each_batch([&](const Tensor& x) { return gram.Add(stream_, x); }));
    RETURN_IF_ERROR(QuantizeWeight(layer, &ffn->gate_up, &gram));
  }
  Gram gram(ffn->down.k());
  RETURN_IF_ERROR(each_batch([&](const Tensor& x) -> absl::Status {
    const Tensor hidden(options_.dtype, {x.dim(0), ffn->down.k()});
    const Tensor unused = Tensor::Zeros(AccDType(options_.dtype), {x.dim(0), config_.hidden});
    RETURN_IF_ERROR(ops::DenseFfn(stream_,
                                  {.activation = config_.activation,
                                   .gate_up = &ffn->gate_up,
                                   .down = &ffn->down,
                                   .up_bias = ffn->up_bias,
                                   .down_bias = ffn->down_bias},
                                  x, hidden, unused));
    return gram.Add(stream_, hidden);
  }));
  return QuantizeWeight(layer, &ffn->down, &gram);
}

absl::Status Calibration::QuantizeFeedForwards(const Layer& layer, const Inputs& inputs) {
  std::vector<int32_t> all(static_cast<size_t>(rows_.dim(0)));
  std::iota(all.begin(), all.end(), 0);
  model::LayerWeights& weights = *layer.part->layer();
  if (weights.dense.has_value()) return QuantizeFfn(layer, inputs, &*weights.dense, all);
  const std::vector<std::vector<int32_t>> rows = RowsOfExperts(inputs.topk_idx, config_.num_experts);
  for (size_t expert = 0; expert < rows.size(); ++expert) {
    Say("expert", static_cast<int64_t>(expert), static_cast<int64_t>(rows.size()));
    RETURN_IF_ERROR(QuantizeFfn(layer, inputs, &weights.moe->experts[expert], rows[expert]));
    rounded_experts_ += static_cast<int64_t>(rows[expert].size()) < kLeastRows ? 1 : 0;
  }
  return weights.moe->shared.has_value() ? QuantizeFfn(layer, inputs, &*weights.moe->shared, all) : absl::OkStatus();
}

absl::StatusOr<std::vector<NamedMatrix>> Calibration::QuantizeLayer(int64_t layer_idx, model::ModelWeights weights,
                                                                    const LayerPlan& plan) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelPart> part,
                   ModelPart::LoadLayer(stream_, checkpoint_, config_, layer_idx, std::move(weights), options_));
  layer_idx_ = layer_idx;
  RETURN_IF_ERROR(RunAll(samples_.held_out, part.get(), held_out_before_));
  std::vector<NamedMatrix> matrices;
  for (const Linear& linear : plan.linears) matrices.push_back({linear.name, {}});
  const Layer layer = {&plan, part.get(), &matrices};
  {
    Inputs inputs(config_, options_.dtype, rows_.dim(0), part->layer()->moe.has_value());
    RETURN_IF_ERROR(Collect(part.get(), &inputs));
    RETURN_IF_ERROR(QuantizeAttention(layer, &inputs));
    RETURN_IF_ERROR(QuantizeFeedForwards(layer, inputs));
  }
  RETURN_IF_ERROR(RunAll(samples_.held_out, part.get(), held_out_));
  if (layer_idx + 1 < config_.num_layers()) RETURN_IF_ERROR(RunAll(samples_.calibration, part.get(), rows_));
  return matrices;
}

absl::StatusOr<HeldOutBits> Calibration::MeasureHeldOut() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelPart> ends, ModelPart::LoadEnds(stream_, checkpoint_, config_, options_));
  HeldOutBits bits;
  ASSIGN_OR_RETURN(bits.before, ends->Bits(samples_.held_out, held_out_before_));
  ASSIGN_OR_RETURN(bits.after, ends->Bits(samples_.held_out, held_out_));
  return bits;
}

}  // namespace switchyard::quantize
