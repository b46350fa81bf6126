#include "workers/model/attention_layer.h"

#include <cmath>

#include "scheduler/base/status_macros.h"
#include "workers/ops/attention.h"
#include "workers/ops/clamp.h"
#include "workers/ops/gemm.h"
#include "workers/ops/rms_norm.h"

namespace switchyard {

AttentionLayer::AttentionLayer(const ModelConfig& config, DType dtype, const RopeTable& rope)
    : config_(config),
      rope_(rope),
      normed_(dtype, {config.hidden}),
      qkv_(dtype, {config.qkv_width()}),
      attended_(dtype, {config.q_width()}) {}

absl::Status AttentionLayer::PrepareQkv(const Stream& stream, const Batch& batch, const AttentionWeights& weights,
                                        const TensorView& qkv) {
  const TensorView q = qkv.Columns(0, config_.q_width());
  const TensorView k = qkv.Columns(config_.q_width(), config_.kv_width());
  if (config_.qk_norm != QkNorm::kNone) {
    const RmsNormDesc norm = {.eps = config_.norm_eps,
                              .head_dim = config_.qk_norm == QkNorm::kPerHead ? config_.head_dim : 0};
    RETURN_IF_ERROR(RmsNorm(stream, norm, q, weights.q_norm, q));
    RETURN_IF_ERROR(RmsNorm(stream, norm, k, weights.k_norm, k));
  }
  if (config_.clip_qkv > 0) RETURN_IF_ERROR(Clamp(stream, config_.clip_qkv, qkv));
  RETURN_IF_ERROR(ApplyRope(stream, rope_, config_.head_dim, batch.rope_rows, q));
  return ApplyRope(stream, rope_, config_.head_dim, batch.rope_rows, k);
}

absl::Status AttentionLayer::Run(const Stream& stream, const Batch& batch, const AttentionWeights& weights,
                                 int32_t window, const KvCacheView& cache, const TensorView& residual) {
  const int64_t num_rows = batch.num_rows();
  if (num_rows == 0) return absl::OkStatus();
  const TensorView x = normed_.Rows(num_rows);
  const TensorView qkv = qkv_.Rows(num_rows);
  const TensorView attended = attended_.Rows(num_rows);
  RETURN_IF_ERROR(RmsNorm(stream, {.eps = config_.norm_eps}, residual, weights.norm, x));
  RETURN_IF_ERROR(Gemm(stream, {}, x, weights.qkv, weights.qkv_bias, qkv));
  RETURN_IF_ERROR(PrepareQkv(stream, batch, weights, qkv));
  const TensorView k = qkv.Columns(config_.q_width(), config_.kv_width());
  const TensorView v = qkv.Columns(config_.q_width() + config_.kv_width(), config_.kv_width());
  RETURN_IF_ERROR(WriteKv(stream, batch.sequences, k, v, cache));
  const AttentionDesc desc = {.num_heads = config_.num_heads,
                              .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                              .window = window};
  RETURN_IF_ERROR(PagedAttention(stream, desc, batch.sequences, qkv.Columns(0, config_.q_width()), cache, attended));
  return Gemm(stream, {.accumulate = true}, attended, weights.o, weights.o_bias, residual);
}

}  // namespace switchyard
