#include "workers/model/attention_layer.h"

#include <algorithm>
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

absl::Status AttentionLayer::ProjectIn(const Stream& stream, const AttentionCall& call, const TensorView& residual,
                                       const TensorView& qkv) {
  const TensorView x = normed_.Rows(residual.dim(0));
  RETURN_IF_ERROR(RmsNorm(stream, {.eps = config_.norm_eps}, residual, call.weights->norm, x));
  RETURN_IF_ERROR(Gemm(stream, {}, x, call.weights->qkv, call.weights->qkv_bias, qkv));
  return PrepareQkv(stream, *call.batch, *call.weights, qkv);
}

absl::Status AttentionLayer::Attend(const Stream& stream, const AttentionCall& call,
                                    absl::Span<const SequenceRows> sequences, const TensorView& qkv,
                                    const TensorView& attended) {
  if (sequences.empty()) return absl::OkStatus();
  const TensorView k = qkv.Columns(config_.q_width(), config_.kv_width());
  const TensorView v = qkv.Columns(config_.q_width() + config_.kv_width(), config_.kv_width());
  RETURN_IF_ERROR(WriteKv(stream, sequences, k, v, call.cache));
  const AttentionDesc desc = {.num_heads = config_.num_heads,
                              .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                              .window = call.window};
  return PagedAttention(stream, desc, sequences, qkv.Columns(0, config_.q_width()), call.cache, attended);
}

// While the lent rows' q, k and v are on their way, this rank attends to the rows that it kept: those stand before.
absl::Status AttentionLayer::AttendLent(const Stream& stream, const AttentionCall& call, const TensorView& qkv,
                                        const TensorView& attended) {
  RowLending& lending = *call.lending;
  RETURN_IF_ERROR(lending.StartHome(qkv));
  RETURN_IF_ERROR(Attend(stream, call, lending.kept_sequences(), qkv, attended));
  RETURN_IF_ERROR(lending.FinishHome(qkv));
  RETURN_IF_ERROR(Attend(stream, call, lending.lent_sequences(), qkv, attended));
  return lending.StartOut(attended);
}

absl::Status AttentionLayer::Run(const Stream& stream, const AttentionCall& call, const TensorView& residual) {
  const bool lends = call.lending != nullptr && call.lending->active();
  const int64_t computed = call.batch->num_rows();
  const int64_t all_rows = std::max(computed, call.batch->num_own_rows());
  const TensorView qkv = qkv_.Rows(all_rows);
  const TensorView attended = attended_.Rows(all_rows);
  if (computed > 0) RETURN_IF_ERROR(ProjectIn(stream, call, residual, qkv.Rows(0, computed)));
  if (lends) {
    RETURN_IF_ERROR(AttendLent(stream, call, qkv, attended));
  } else {
    RETURN_IF_ERROR(Attend(stream, call, call.batch->sequences, qkv, attended));
  }
  const auto project_out = [&]() -> absl::Status {
    if (computed == 0) return absl::OkStatus();
    const AttentionWeights& weights = *call.weights;
    return Gemm(stream, {.accumulate = true}, attended.Rows(0, computed), weights.o, weights.o_bias, residual);
  };
  if (!lends) return project_out();
  // Who lent goes on while its rows travel; who borrowed waits for them.
  if (!call.lending->borrows()) RETURN_IF_ERROR(project_out());
  RETURN_IF_ERROR(call.lending->FinishOut(attended));
  return call.lending->borrows() ? project_out() : absl::OkStatus();
}

}  // namespace switchyard
