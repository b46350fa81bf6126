#include "workers/model/forward/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/env.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/forward/model_norm.h"
#include "workers/ops/embedding/embedding.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {
namespace {

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(MonotonicNow() - start); }

absl::Status LinkExperts(const Stream& stream, const std::vector<FfnWeights>& experts, moe::MoeLayerWeights* to) {
  std::vector<const ops::Weight*> gate_up, down;
  to->up_biases.clear();
  to->down_biases.clear();
  to->gate_up_adapters = to->down_adapters = {};
  const auto link = [](const std::optional<AdapterWeights>& from, moe::ExpertAdapters* adapters) {
    if (!from.has_value()) return;
    adapters->a.push_back(&from->a);
    adapters->b.push_back(&from->b);
    adapters->scale = from->scale;
  };
  for (const FfnWeights& expert : experts) {
    link(expert.gate_up_adapter, &to->gate_up_adapters);
    link(expert.down_adapter, &to->down_adapters);
    gate_up.push_back(&expert.gate_up);
    down.push_back(&expert.down);
    if (expert.up_bias.bytes() == 0) continue;
    to->up_biases.push_back(expert.up_bias);
    to->down_biases.push_back(expert.down_bias);
  }
  ASSIGN_OR_RETURN(to->gate_up, ops::WeightTable::Make(stream, std::move(gate_up)));
  ASSIGN_OR_RETURN(to->down, ops::WeightTable::Make(stream, std::move(down)));
  return absl::OkStatus();
}

absl::StatusOr<moe::MoeLayer> MakeMoeLayer(const Stream& stream, const ModelConfig& config, DType dtype,
                                           const MoeWeights& weights) {
  moe::MoeLayer layer;
  layer.desc = {.hidden = config.hidden,
                .expert_ffn = config.expert_intermediate,
                .shared_ffn = config.shared_intermediate,
                .activation = config.activation,
                .glu_clamp = config.glu_clamp,
                .dtype = dtype,
                .router = {.top_k = config.top_k, .renormalize = config.renormalize}};
  layer.weights.router = &weights.router;
  layer.weights.router_bias = weights.router_bias;
  RETURN_IF_ERROR(LinkExperts(stream, weights.experts, &layer.weights));
  if (weights.shared.has_value()) {
    layer.weights.shared_gate_up = &weights.shared->gate_up;
    layer.weights.shared_down = &weights.shared->down;
    layer.weights.shared_gate = &weights.shared_gate;
  }
  return layer;
}

// Under SY_CHECK_NAN: Internal with the first element of the residual stream that is not finite.
absl::Status CheckFinite(const Stream& stream, const TensorView& rows, int64_t layer_idx) {
  ASSIGN_OR_RETURN(const Tensor on_host, CopyToHost(stream, rows));
  const TensorView& residual = on_host;
  return VisitDType(residual.dtype(), [&]<class Elem>() -> absl::Status {
    for (int64_t row = 0; row < residual.dim(0); ++row) {
      for (int64_t column = 0; column < residual.dim(1); ++column) {
        const double value = static_cast<double>(static_cast<Acc<Elem>>(residual.row<Elem>(row)[column]));
        if (std::isfinite(value)) continue;
        return absl::InternalError(
            absl::StrCat("layer ", layer_idx, ": ", value, " at row ", row, ", column ", column));
      }
    }
    return absl::OkStatus();
  });
}

// Unimplemented: a device, for a model with ops that only the CPU has.
absl::Status CheckDevice(const Stream& stream, const ModelConfig& config) {
  const char* const op = config.norm == NormKind::kLayer    ? "layer_norm"
                         : !ops::IsGated(config.activation) ? "gelu"
                         : config.learned_positions         ? "add_embedding"
                                                            : nullptr;
  if (stream.device().is_cpu() || op == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(config.model_type, ": ", op, " runs on the CPU alone, not on ", stream.device().ToString()));
}

void Tap(const StageIn& in, const char* name, int64_t layer_idx, const TensorView& residual) {
  if (in.tap.has_value()) (*in.tap)(name, layer_idx, residual);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const Stream& stream, const ModelConfig& config, DType dtype,
                                                     ModelWeights weights, int64_t max_positions,
                                                     moe::ExpertWeightProvider* experts) {
  RETURN_IF_ERROR(CheckDevice(stream, config));
  ASSIGN_OR_RETURN(ops::RopeTable rope, config.learned_positions
                                            ? ops::RopeTable::WithoutRotation(max_positions, AccDType(dtype))
                                            : ops::RopeTable::Build(config.rope, max_positions, AccDType(dtype)));
  RETURN_IF_ERROR(rope.MoveTo(stream));
  std::unique_ptr<Model> model(new Model(config, dtype, std::move(weights), std::move(rope), stream.device()));
  RETURN_IF_ERROR(model->MakeMoeLayers(stream, experts));
  return model;
}

Model::Model(const ModelConfig& config, DType dtype, ModelWeights weights, ops::RopeTable rope, Device device)
    : config_(config),
      dtype_(dtype),
      weights_(std::move(weights)),
      rope_(std::move(rope)),
      check_nan_(EnvBool("SY_CHECK_NAN")),
      attention_(config_, dtype, rope_, device),
      residual_(AccDType(dtype), {config.hidden}, device),
      normed_(dtype, {config.hidden}, device),
      dense_hidden_(dtype, {config.dense_intermediate}, device),
      added_(AccDType(dtype), {config.hidden}, device),
      head_rows_(AccDType(dtype), {config.hidden}, device),
      logits_(AccDType(dtype), {config.vocab_size}, device),
      counts_(DType::kI32, {config.num_experts}, device),
      topk_(DType::kI32, {config.top_k}, device) {}

absl::Status Model::MakeMoeLayers(const Stream& stream, moe::ExpertWeightProvider* experts) {
  experts_ = experts;
  int num_moe_layers = 0;
  for (const LayerWeights& layer : weights_.layers) {
    moe_layers_.emplace_back();
    moe_idx_.push_back(num_moe_layers);
    if (!layer.moe.has_value()) continue;
    ASSIGN_OR_RETURN(moe_layers_.back(), MakeMoeLayer(stream, config_, dtype_, *layer.moe));
    moe_layers_.back()->weights.experts = experts;
    ++num_moe_layers;
  }
  return counts_.Reserve(2 * config_.num_layers());
}

void Model::ReplaceExperts(const Stream& stream, std::vector<int32_t> residents,
                           std::vector<std::vector<FfnWeights>> experts) {
  SY_CHECK(stream.device().is_cpu() && experts_ == nullptr);
  SY_CHECK_EQ(static_cast<int64_t>(experts.size()), config_.num_moe_layers());
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    if (!weights_.layers[i].moe.has_value()) continue;
    std::vector<FfnWeights>& to = weights_.layers[i].moe->experts;
    to = std::move(experts[moe_idx_[i]]);
    SY_CHECK_EQ(to.size(), residents.size());
    SY_CHECK_OK(LinkExperts(stream, to, &moe_layers_[i]->weights));  // only devices can refuse
  }
  weights_.residents = std::move(residents);
}

absl::Status Model::Reserve(int64_t rows) {
  RETURN_IF_ERROR(attention_.Reserve(rows));
  for (ScratchTensor* scratch : {&residual_, &normed_}) RETURN_IF_ERROR(scratch->Reserve(rows));
  if (config_.num_moe_layers() < config_.num_layers()) RETURN_IF_ERROR(dense_hidden_.Reserve(rows));
  for (ScratchTensor* scratch : {&head_rows_, &logits_}) {
    RETURN_IF_ERROR(scratch->Reserve(std::min<int64_t>(rows, kHeadRows)));
  }
  return absl::OkStatus();
}

absl::Status Model::ReserveLayers(moe::MoeCapacity room, moe::MoeExecutor* executor) const {
  for (const std::optional<moe::MoeLayer>& layer : moe_layers_) {
    if (!layer.has_value()) continue;
    room.offloaded = layer->weights.experts != nullptr;
    RETURN_IF_ERROR(executor->Reserve(room, layer->desc));
  }
  return absl::OkStatus();
}

absl::Status Model::ReserveExchange(const moe::MoeCapacity& room) { return ReserveLayers(room, &moe_executor_); }

absl::Status Model::ReserveRecorded(const moe::MoeCapacity& room) {
  moe::MoeCapacity recorded = room;
  recorded.exchange = room.layout->num_ranks() > 1 ? moe::ExchangeMode::kPadded : moe::ExchangeMode::kExact;
  return ReserveLayers(recorded, &recorded_executor_);
}

absl::StatusOr<StageOut> Model::Forward(const StageIn& in, LayerRange layers, KvCache* cache, SavedForward* saved) {
  const Stream& stream = *in.moe->stream;
  if (saved != nullptr) RETURN_IF_ERROR(CheckSaving(in, *saved));
  SY_CHECK(0 <= layers.begin && layers.begin <= layers.end && layers.end <= config_.num_layers());
  const Batch& batch = *in.batch;
  // Given rows that are wanted come back to their place behind the computed ones.
  const TensorView all_rows = residual_.Rows(std::max(batch.num_rows(), batch.num_own_rows()));
  const TensorView residual = all_rows.Rows(0, batch.num_rows());
  StageOut out;
  const TensorView counts = counts_.Rows(2 * config_.num_layers());
  out.expert_counts = counts.Rows(0, config_.num_layers());
  RETURN_IF_ERROR(FillZero(stream, out.expert_counts));
  if (in.keep_topk) RETURN_IF_ERROR(TakeTopK(in, &out));
  if (0 < batch.num_decode_rows && batch.num_decode_rows < batch.num_rows()) {
    out.decode_counts = counts.Rows(config_.num_layers(), config_.num_layers());
    RETURN_IF_ERROR(FillZero(stream, out.decode_counts));
  }
  if (in.hidden.rank() == 0) {
    SY_CHECK_EQ(layers.begin, 0);
    RETURN_IF_ERROR(Embed(stream, batch, residual));
    if (in.noise != nullptr && in.noise->rates.embedding > 0) {
      RETURN_IF_ERROR(ops::Dropout(stream, in.noise->At(in.noise->rates.embedding, ops::NoiseSite::kEmbedding, 0),
                                   residual, residual));
    }
  } else if (in.hidden.raw() != residual.raw()) {
    SY_CHECK(in.hidden.contiguous() && in.hidden.dtype() == residual.dtype() && in.hidden.shape() == residual.shape());
    RETURN_IF_ERROR(CopyTensor(stream, in.hidden, residual));
  }
  Tap(in, "embed", -1, residual);
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    SavedLayer kept;
    LayerCall call = {.in = &in, .layer_idx = i, .cache = cache, .residual = residual, .out = &out};
    if (saved != nullptr) {
      kept = saved->layer(i);
      // A layer that is repeated has its input there already.
      if (in.hidden.raw() != kept.residual_in.raw()) RETURN_IF_ERROR(CopyTensor(stream, residual, kept.residual_in));
      call.saved = &kept;
    }
    RETURN_IF_ERROR(RunLayer(stream, call));
    if (kept.moe != nullptr) {
      RETURN_IF_ERROR(
          ops::ComputeRouterStatistics(stream, kept.moe->logits, kept.moe->topk_idx, &saved->router_statistics()[i]));
    }
    if (in.keep_topk && moe_layers_[i].has_value()) RETURN_IF_ERROR(KeepTopK(stream, in, i, out.topk_idx));
    const bool padding = batch.on_device != nullptr && batch.on_device->num_real_rows != nullptr;
    if (check_nan_ && !padding) RETURN_IF_ERROR(CheckFinite(stream, residual, i));
  }
  if (layers.end == config_.num_layers() && in.logits.has_value()) {
    if (in.rebalancing != nullptr && in.rebalancing->active()) RETURN_IF_ERROR(in.rebalancing->ReturnWanted(all_rows));
    const absl::Time start = MonotonicNow();
    RETURN_IF_ERROR(RunHead(stream, batch, all_rows, *in.logits));
    out.head_seconds = SecondsSince(start);
  }
  out.hidden = residual;
  return out;
}

absl::Status Model::CheckSaving(const StageIn& in, const SavedForward& saved) const {
  if (!in.moe->stream->device().is_cpu()) return absl::UnimplementedError("forward: training on a device");
  if (config_.attention_sinks || config_.glu_clamp.limit > 0 || config_.router_logit_bias) {
    return absl::UnimplementedError(absl::StrCat("forward: training of ", config_.model_type));
  }
  if (in.rebalancing != nullptr && in.rebalancing->active()) {
    return absl::UnimplementedError("forward: rows are given away in a pass that is kept for a backward one");
  }
  if (in.moe->balancer != nullptr || in.moe->load_predictor != nullptr) {
    return absl::UnimplementedError(
        "forward: a pass that is kept for a backward one has no load balancer and no load predictor");
  }
  if (saved.num_rows() == in.batch->num_rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("forward: room for ", saved.num_rows(), " rows to keep, the batch has ", in.batch->num_rows()));
}

absl::Status Model::RunLayer(const Stream& stream, const LayerCall& call) {
  const absl::Time start = MonotonicNow();
  TokenRebalancer* const rebalancing = call.in->rebalancing;
  const double exchanged = rebalancing != nullptr ? rebalancing->exchange_seconds() : 0;
  RETURN_IF_ERROR(attention_.Run(stream,
                                 {.batch = call.in->batch,
                                  .rebalancing = rebalancing,
                                  .weights = &weights_.layers[call.layer_idx].attention,
                                  .window = config_.layers[call.layer_idx].window,
                                  .cache = call.cache->layer(call.layer_idx),
                                  .saved = call.saved,
                                  .noise = {call.in->noise, call.layer_idx},
                                  .adapters = weights_.adapters.empty() ? nullptr : &weights_.adapters[call.layer_idx]},
                                 call.residual));
  call.out->attention_seconds += SecondsSince(start);
  if (rebalancing != nullptr) call.out->attention_seconds -= rebalancing->exchange_seconds() - exchanged;
  if (call.saved != nullptr) RETURN_IF_ERROR(CopyTensor(stream, call.residual, call.saved->residual_mid));
  Tap(*call.in, "attention", call.layer_idx, call.residual);
  RETURN_IF_ERROR(RunFfn(stream, call));
  Tap(*call.in, "layer", call.layer_idx, call.residual);
  return absl::OkStatus();
}

absl::Status Model::RunFfn(const Stream& stream, const LayerCall& call) {
  const ops::NoiseDesc dropout = LayerNoise{call.in->noise, call.layer_idx}.feed_forward();
  if (!dropout.on()) return AddFfn(stream, call, call.residual);
  const TensorView added = added_.Rows(call.residual.dim(0));
  RETURN_IF_ERROR(FillZero(stream, added));
  RETURN_IF_ERROR(AddFfn(stream, call, added));
  return ops::AddDropped(stream, dropout, added, call.residual);
}

absl::Status Model::AddFfn(const Stream& stream, const LayerCall& call, const TensorView& y) {
  const StageIn& in = *call.in;
  StageOut* const out = call.out;
  const int64_t layer_idx = call.layer_idx;
  const LayerWeights& layer = weights_.layers[layer_idx];
  const int64_t num_rows = call.residual.dim(0);
  const TensorView x = normed_.Rows(num_rows);
  if (num_rows > 0)
    RETURN_IF_ERROR(Normalize(stream, config_, {layer.ffn_norm, layer.ffn_norm_bias}, call.residual, x));
  if (layer.moe.has_value()) {
    const ops::NoiseDesc jitter = LayerNoise{in.noise, layer_idx}.router();
    if (jitter.on()) RETURN_IF_ERROR(ops::Jitter(stream, jitter, x));
    const auto of_layer = [&](const TensorView& counts) {
      return counts.rank() == 0 ? counts : counts.Rows(layer_idx, 1).Reshape({config_.num_experts});
    };
    const moe::LayerContext at = {
        .index = moe_idx_[layer_idx],
        .expert_counts = of_layer(out->expert_counts),
        .decode_counts = of_layer(out->decode_counts),
        .num_decode_rows = in.batch->num_decode_rows,
        .num_rows = in.batch->on_device != nullptr ? in.batch->on_device->num_real_rows : nullptr,
        .saved = call.saved != nullptr ? call.saved->moe : nullptr};
    return (in.moe->recorded ? recorded_executor_ : moe_executor_).Run(*in.moe, at, *moe_layers_[layer_idx], x, y);
  }
  if (num_rows == 0) return absl::OkStatus();
  const bool saves = call.saved != nullptr;
  const TensorView hidden = saves ? call.saved->dense_hidden : dense_hidden_.Rows(num_rows);
  return ops::DenseFfn(stream,
                       {.activation = config_.activation,
                        .gate_up = &layer.dense->gate_up,
                        .down = &layer.dense->down,
                        .up_bias = layer.dense->up_bias,
                        .down_bias = layer.dense->down_bias,
                        .sums = saves ? call.saved->dense_sums : TensorView()},
                       x, hidden, y);
}

absl::Status Model::TakeTopK(const StageIn& in, StageOut* out) {
  const int64_t num_moe = config_.num_moe_layers(), num_rows = in.batch->num_rows();
  RETURN_IF_ERROR(topk_.Reserve(num_moe * num_rows));
  out->topk_idx = topk_.Rows(num_moe * num_rows).Reshape({num_moe, num_rows, config_.top_k});
  return absl::OkStatus();
}

// Copies what the layer that ran last has chosen.
absl::Status Model::KeepTopK(const Stream& stream, const StageIn& in, int64_t layer_idx, const TensorView& topk_idx) {
  const moe::MoeExecutor& executor = in.moe->recorded ? recorded_executor_ : moe_executor_;
  const TensorView to = topk_idx.Rows(moe_idx_[layer_idx], 1).Reshape({in.batch->num_rows(), config_.top_k});
  return CopyTensor(stream, executor.topk_idx(), to);
}

absl::Status Model::Embed(const Stream& stream, const Batch& batch, const TensorView& residual) {
  if (batch.num_rows() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(weights_.embedding.bytes() == 0
                      ? EmbedTied(stream, batch, residual)
                      : switchyard::ops::Embed(stream, weights_.embedding, batch.token_ids(), residual));
  if (!config_.learned_positions) return absl::OkStatus();
  return ops::AddEmbedding(stream, weights_.positions, batch.table_rows(), residual);
}

// A tied table is held once, packed as lm_head.  On the CPU its rows are unpacked one by one, then widened.
absl::Status Model::EmbedTied(const Stream& stream, const Batch& batch, const TensorView& residual) {
  if (!stream.device().is_cpu()) {
    return switchyard::ops::Embed(stream, weights_.lm_head.rows(), batch.token_ids(), residual);
  }
  const int64_t num_rows = batch.num_rows();
  const TensorView rows = normed_.Rows(num_rows);
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is outside [0, ", config_.vocab_size, ")"));
    }
  }
  stream.pool().ParallelFor(num_rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) SY_CHECK_OK(weights_.lm_head.UnpackRows(batch.tokens[i], rows.Rows(i, 1)));
  });
  row_ids_.resize(num_rows);
  std::iota(row_ids_.begin(), row_ids_.end(), 0);
  return switchyard::ops::Embed(stream, rows, row_ids_, residual);
}

absl::Status Model::RunHead(const Stream& stream, const Batch& batch, const TensorView& residual, LogitsSink sink) {
  const IntView wanted = batch.wanted_rows();
  const int64_t num_logits = wanted.size();
  for (int64_t first = 0; first < num_logits; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, num_logits - first);
    const TensorView rows = head_rows_.Rows(count);
    const TensorView x = normed_.Rows(count);
    const TensorView logits = logits_.Rows(count);
    RETURN_IF_ERROR(ops::GatherRows(stream, residual, wanted.Part(first, count), rows));
    RETURN_IF_ERROR(Normalize(stream, config_, {weights_.final_norm, weights_.final_norm_bias}, rows, x));
    RETURN_IF_ERROR(ops::Gemm(stream, {}, x, weights_.lm_head, TensorView(), logits));
    RETURN_IF_ERROR(sink(first, logits));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
