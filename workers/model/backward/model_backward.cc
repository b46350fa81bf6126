#include "workers/model/backward/model_backward.h"

#include <cmath>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/forward/model_norm.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/ops/activation/activation_backward.h"
#include "workers/ops/activation/bias_gradient.h"
#include "workers/ops/embedding/embedding_backward.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/rope/qkv_backward.h"
#include "workers/tensor/copy.h"

namespace switchyard::model {
namespace {

// dx = dy · W, and these rows' shares of dW and of the bias's gradient (rank 0: none is wanted).
absl::Status ProductBackward(const Stream& stream, const ops::TrainedMatrix& matrix, const TensorView& d_bias,
                             const TensorView& d_y, const TensorView& x, const TensorView& d_x) {
  if (d_bias.rank() != 0) RETURN_IF_ERROR(ops::BiasGradient(stream, d_y, d_bias));
  RETURN_IF_ERROR(ops::WeightGradient(stream, d_y, x, matrix.gradient));
  return ops::Gemm(stream, {}, d_y, *matrix.transposed, TensorView(), d_x);
}

void Report(const BackwardIn& in, BackwardPart part, int64_t layer_idx = 0) {
  if (in.on_stage) in.on_stage({.part = part, .layer = layer_idx});
}

}  // namespace

ModelBackward::ModelBackward(Model* model) : model_(model) {
  const ModelConfig& config = model->config();
  const DType dtype = model->dtype();
  x_ = ScratchTensor(dtype, {config.hidden});
  d_x_ = ScratchTensor(dtype, {config.hidden});
  d_out_ = ScratchTensor(dtype, {config.hidden});
  dropped_ = ScratchTensor(AccDType(dtype), {config.hidden});
  d_attended_ = ScratchTensor(dtype, {config.q_width()});
  d_qkv_ = ScratchTensor(dtype, {config.qkv_width()});
  d_hidden_ = ScratchTensor(dtype, {config.dense_intermediate});
  d_sums_ = ScratchTensor(dtype, {ops::SumsWidth(config.activation, config.dense_intermediate)});
}

absl::Status ModelBackward::Run(const BackwardIn& in, LayerRange layers, const TensorView& d_residual) {
  const Stream& stream = *in.forward.moe->stream;
  SY_CHECK_EQ(static_cast<int64_t>(in.gradients->layers.size()), model_->config().num_layers());
  SY_CHECK_EQ(in.saved->num_rows(), d_residual.dim(0));
  sequences_.clear();
  for (const ops::SequenceRows& each : in.forward.batch->sequences) {
    SY_CHECK_EQ(each.start_pos, 0);
    sequences_.push_back({.first_row = static_cast<int32_t>(each.row_begin), .num_rows = each.num_query});
  }
  if (layers.end == model_->config().num_layers()) Report(in, BackwardPart::kHead);
  for (int64_t i = layers.end - 1; i >= layers.begin; --i) {
    if (in.saved->policy() == SavePolicy::kLayerInputs && i + 1 < layers.end) {
      RETURN_IF_ERROR(RunAgain(in, i));
    }
    RETURN_IF_ERROR(RunLayer({stream, in, i, in.saved->layer(i), d_residual}));
  }
  if (layers.begin > 0) return absl::OkStatus();
  if (d_residual.dim(0) > 0) {
    const Batch& batch = *in.forward.batch;
    if (const TrainingNoise* noise = in.forward.noise; noise != nullptr && noise->rates.embedding > 0) {
      const ops::NoiseDesc dropout = noise->At(noise->rates.embedding, ops::NoiseSite::kEmbedding, 0);
      RETURN_IF_ERROR(ops::Dropout(stream, dropout, d_residual, d_residual));
    }
    if (in.gradients->positions.rank() != 0) {
      RETURN_IF_ERROR(ops::EmbedBackward(stream, batch.table_rows(), d_residual, in.gradients->positions));
    }
    if (in.gradients->embedding.rank() != 0) {
      const bool sparse = in.embedding_rows.rank() != 0;
      RETURN_IF_ERROR(ops::EmbedBackward(stream, sparse ? in.embedding_slots : batch.token_ids(), d_residual,
                                         sparse ? in.embedding_rows : in.gradients->embedding));
    }
  }
  Report(in, BackwardPart::kEmbedding);
  return absl::OkStatus();
}

absl::Status ModelBackward::RunAgain(const BackwardIn& in, int64_t layer_idx) {
  moe::MoeStats stats;  // its rows were counted when it ran first
  moe::MoeContext moe = *in.forward.moe;
  moe.stats = &stats;
  const StageIn again = {.batch = in.forward.batch,
                         .moe = &moe,
                         .hidden = in.saved->layer(layer_idx).residual_in,
                         .noise = in.forward.noise};
  RETURN_IF_ERROR(model_->Forward(again, {layer_idx, layer_idx + 1}, in.cache, in.saved).status());
  in.forward.moe->stats->exchange_seconds += stats.exchange_seconds;
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ModelBackward::Rounded(const Stream& stream, const ops::NoiseDesc& dropout,
                                                  const TensorView& d_residual) {
  if (dropout.on()) {
    const TensorView dropped = d_out_.Rows(d_residual.dim(0));
    RETURN_IF_ERROR(ops::Dropout(stream, dropout, d_residual, dropped));
    return dropped;
  }
  if (d_residual.dtype() == model_->dtype()) return d_residual;
  const TensorView rounded = d_out_.Rows(d_residual.dim(0));
  RETURN_IF_ERROR(RoundRows(stream, d_residual, rounded));
  return rounded;
}

absl::Status ModelBackward::RunLayer(const LayerCall& call) {
  const auto& [stream, in, layer_idx, saved, d_residual] = call;
  const int64_t num_rows = d_residual.dim(0);
  const LayerWeights& weights = model_->weights().layers[layer_idx];
  const LayerGradients& gradients = in.gradients->layers[layer_idx];
  const NormViews norm = {weights.ffn_norm, weights.ffn_norm_bias};
  if (weights.moe.has_value() && in.forward.moe->watch != nullptr) in.forward.moe->watch->Imminent();
  if (num_rows > 0) {
    RETURN_IF_ERROR(Normalize(stream, model_->config(), norm, saved.residual_mid, x_.Rows(num_rows)));
  }
  if (weights.moe.has_value()) {
    RETURN_IF_ERROR(RunMoe(call));
  } else if (num_rows > 0) {
    RETURN_IF_ERROR(RunDense(call));
  }
  if (num_rows > 0) {
    RETURN_IF_ERROR(NormalizeBackward(
        stream, model_->config(),
        {.weights = norm, .gradients = {gradients.ffn_norm, gradients.ffn_norm_bias}, .accumulate = true},
        saved.residual_mid, d_x_.Rows(num_rows), d_residual));
  }
  Report(in, BackwardPart::kFeedForward, layer_idx);
  if (num_rows > 0) RETURN_IF_ERROR(RunOutProjection(call));
  Report(in, BackwardPart::kAttentionOut, layer_idx);
  if (num_rows > 0) RETURN_IF_ERROR(RunAttention(call));
  Report(in, BackwardPart::kAttentionIn, layer_idx);
  return absl::OkStatus();
}

absl::Status ModelBackward::RunMoe(const LayerCall& call) {
  const BackwardIn& in = call.in;
  const int64_t num_rows = call.d_residual.dim(0);
  const MoeGradients& gradients = *in.gradients->layers[call.layer_idx].moe;
  const moe::MoeBackwardWeights to = {.router = gradients.router,
                                      .experts = gradients.experts,
                                      .shared = gradients.shared.has_value() ? &*gradients.shared : nullptr,
                                      .shared_gate = gradients.shared_gate};
  const moe::RouterLoss loss = in.router_losses.empty() ? moe::RouterLoss() : in.router_losses[call.layer_idx];
  const ops::NoiseDesc jitter = call.noise().router(), dropout = call.noise().feed_forward();
  const TensorView x = x_.Rows(num_rows), d_x = d_x_.Rows(num_rows);
  TensorView d_out = call.d_residual;
  if (dropout.on()) {
    d_out = dropped_.Rows(num_rows);
    RETURN_IF_ERROR(ops::Dropout(call.stream, dropout, call.d_residual, d_out));
  }
  if (jitter.on()) RETURN_IF_ERROR(ops::Jitter(call.stream, jitter, x));
  RETURN_IF_ERROR(moe_.Run(*in.forward.moe, {.index = model_->moe_index(call.layer_idx), .saved = call.saved.moe},
                           *model_->moe_layer(call.layer_idx), to,
                           {.x = x, .d_residual = d_out, .router_loss = loss, .d_x = d_x}));
  return jitter.on() ? ops::Jitter(call.stream, jitter, d_x) : absl::OkStatus();
}

absl::Status ModelBackward::RunDense(const LayerCall& call) {
  const auto& [stream, in, layer_idx, saved, d_residual] = call;
  const ops::FfnGradients& gradients = *in.gradients->layers[layer_idx].dense;
  const int64_t num_rows = d_residual.dim(0);
  const TensorView d_hidden = d_hidden_.Rows(num_rows), d_sums = d_sums_.Rows(num_rows);
  SY_CHECK_EQ(model_->weights().layers[layer_idx].dense->down.k(), d_hidden.dim(1));
  ASSIGN_OR_RETURN(const TensorView d_out, Rounded(stream, call.noise().feed_forward(), d_residual));
  RETURN_IF_ERROR(ProductBackward(stream, gradients.down, gradients.down_bias, d_out, saved.dense_hidden, d_hidden));
  RETURN_IF_ERROR(ops::ActivationBackward(stream, model_->config().activation, saved.dense_sums, d_hidden, d_sums));
  return ProductBackward(stream, gradients.gate_up, gradients.up_bias, d_sums, x_.Rows(num_rows), d_x_.Rows(num_rows));
}

// Leaves d_attended_ for RunAttention.
absl::Status ModelBackward::RunOutProjection(const LayerCall& call) {
  const AttentionGradients& gradients = call.in.gradients->layers[call.layer_idx].attention;
  ASSIGN_OR_RETURN(const TensorView d_out, Rounded(call.stream, call.noise().attention_out(), call.d_residual));
  const TensorView d_attended = d_attended_.Rows(d_out.dim(0));
  RETURN_IF_ERROR(ProductBackward(call.stream, gradients.o, gradients.o_bias, d_out, call.saved.attended, d_attended));
  return adapters_.Backward(call.stream, model_->weights().layers[call.layer_idx].attention.o_adapters,
                            gradients.o_adapters, d_out, call.saved.attended, d_attended, call.noise().adapters());
}

absl::Status ModelBackward::RunAttention(const LayerCall& call) {
  const auto& [stream, in, layer_idx, saved, d_residual] = call;
  const ModelConfig& config = model_->config();
  const int64_t num_rows = d_residual.dim(0);
  const AttentionWeights& weights = model_->weights().layers[layer_idx].attention;
  const AttentionGradients& gradients = in.gradients->layers[layer_idx].attention;
  const TensorView d_attended = d_attended_.Rows(num_rows), d_qkv = d_qkv_.Rows(num_rows);
  RETURN_IF_ERROR(ops::AttentionBackward(stream,
                                         {.num_heads = config.num_heads,
                                          .num_kv_heads = config.num_kv_heads,
                                          .head_dim = config.head_dim,
                                          .scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                                          .window = config.layers[layer_idx].window,
                                          .dropout = call.noise().attention()},
                                         sequences_, saved.qkv, saved.attended, d_attended, d_qkv));
  RETURN_IF_ERROR(ops::PrepareQkvBackward(stream, QkvDescOf(config, weights), model_->rope(),
                                          in.forward.batch->table_rows(),
                                          saved.projected.rank() != 0 ? saved.projected : saved.qkv,
                                          {.dqkv = d_qkv, .dq_norm = gradients.q_norm, .dk_norm = gradients.k_norm}));
  const NormViews norm = {weights.norm, weights.norm_bias};
  const TensorView x = x_.Rows(num_rows);
  RETURN_IF_ERROR(Normalize(stream, config, norm, saved.residual_in, x));
  RETURN_IF_ERROR(ProductBackward(stream, gradients.qkv, gradients.qkv_bias, d_qkv, x, d_x_.Rows(num_rows)));
  RETURN_IF_ERROR(adapters_.Backward(stream, weights.qkv_adapters, gradients.qkv_adapters, d_qkv, x,
                                     d_x_.Rows(num_rows), call.noise().adapters()));
  return NormalizeBackward(stream, config,
                           {.weights = norm, .gradients = {gradients.norm, gradients.norm_bias}, .accumulate = true},
                           saved.residual_in, d_x_.Rows(num_rows), d_residual);
}

}  // namespace switchyard::model
