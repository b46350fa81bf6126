#include "workers/model/forward/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/forward/model_norm.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/copy.h"

namespace switchyard::model {

ops::QkvDesc QkvDescOf(const ModelConfig& config, const AttentionWeights& weights) {
  return {.num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .eps = config.norm_eps,
          .q_norm = config.qk_norm != QkNorm::kNone ? weights.q_norm.view() : TensorView(),
          .k_norm = config.qk_norm != QkNorm::kNone ? weights.k_norm.view() : TensorView(),
          .clip = config.clip_qkv};
}

AttentionLayer::AttentionLayer(const ModelConfig& config, DType dtype, const ops::RopeTable& rope, Device device)
    : config_(config),
      rope_(rope),
      normed_(dtype, {config.hidden}, device),
      qkv_(dtype, {config.qkv_width()}, device),
      attended_(dtype, {config.q_width()}, device),
      added_(AccDType(dtype), {config.hidden}, device) {}

absl::Status AttentionLayer::Reserve(int64_t rows) {
  for (ScratchTensor* scratch : {&normed_, &qkv_, &attended_}) RETURN_IF_ERROR(scratch->Reserve(rows));
  return absl::OkStatus();
}

absl::Status AttentionLayer::ProjectIn(const Stream& stream, const AttentionCall& call, const TensorView& residual,
                                       const TensorView& qkv) {
  const TensorView x = normed_.Rows(residual.dim(0));
  RETURN_IF_ERROR(Normalize(stream, config_, {call.weights->norm, call.weights->norm_bias}, residual, x));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, x, call.weights->qkv, call.weights->qkv_bias, qkv));
  RETURN_IF_ERROR(adapters_.Add(stream, call.weights->qkv_adapters, x, qkv, call.noise.adapters()));
  return AddRowAdapters(stream, call, &LayerAdapter::qkv, x, qkv);
}

absl::Status AttentionLayer::AddRowAdapters(const Stream& stream, const AttentionCall& call,
                                            std::vector<AdapterWeights> LayerAdapter::*projections, const TensorView& x,
                                            const TensorView& y) {
  if (call.adapters == nullptr) return absl::OkStatus();
  return row_adapters_.Add(stream, *call.adapters, projections, call.batch->adapters, x, y);
}

absl::Status AttentionLayer::Attend(const Stream& stream, const AttentionCall& call,
                                    const ops::SequenceBatch& sequences, const TensorView& qkv,
                                    const TensorView& attended) {
  const ops::AttentionDesc desc = {.num_heads = config_.num_heads,
                                   .scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim)),
                                   .window = call.window,
                                   .sinks = config_.attention_sinks ? call.weights->sinks.view() : TensorView(),
                                   .dropout = call.noise.attention()};
  return ops::PagedAttention(stream, desc, sequences, qkv.Columns(0, config_.q_width()), call.cache, attended);
}

absl::Status AttentionLayer::CacheAndAttend(const Stream& stream, const AttentionCall& call,
                                            const ops::SequenceBatch& sequences, const TensorView& qkv,
                                            const TensorView& attended) {
  if (sequences.rows.empty()) return absl::OkStatus();
  const TensorView k = qkv.Columns(config_.q_width(), config_.kv_width());
  const TensorView v = qkv.Columns(config_.q_width() + config_.kv_width(), config_.kv_width());
  RETURN_IF_ERROR(ops::WriteKv(stream, sequences, k, v, call.cache));
  return Attend(stream, call, sequences, qkv, attended);
}

// Attends to the kept rows, which come first, while q, k and v of the rows that were given away are on their way.
absl::Status AttentionLayer::AttendGiven(const Stream& stream, const AttentionCall& call, const TensorView& qkv,
                                         const TensorView& attended) {
  TokenRebalancer& rebalancing = *call.rebalancing;
  RETURN_IF_ERROR(rebalancing.StartHome(qkv));
  RETURN_IF_ERROR(CacheAndAttend(stream, call, rebalancing.kept_sequences(), qkv, attended));
  RETURN_IF_ERROR(rebalancing.FinishHome(qkv));
  RETURN_IF_ERROR(CacheAndAttend(stream, call, rebalancing.given_sequences(), qkv, attended));
  return rebalancing.StartOut(attended);
}

absl::Status AttentionLayer::ProjectOut(const Stream& stream, const AttentionCall& call, const TensorView& attended,
                                        const TensorView& residual) {
  const int64_t computed = residual.dim(0);
  if (computed == 0) return absl::OkStatus();
  const AttentionWeights& weights = *call.weights;
  const TensorView x = attended.Rows(0, computed);
  const ops::NoiseDesc dropout = call.noise.attention_out();
  const TensorView y = dropout.on() ? added_.Rows(computed) : residual;
  RETURN_IF_ERROR(ops::Gemm(stream, {.accumulate = !dropout.on()}, x, weights.o, weights.o_bias, y));
  RETURN_IF_ERROR(adapters_.Add(stream, weights.o_adapters, x, y, call.noise.adapters()));
  RETURN_IF_ERROR(AddRowAdapters(stream, call, &LayerAdapter::o, x, y));
  return dropout.on() ? ops::AddDropped(stream, dropout, y, residual) : absl::OkStatus();
}

absl::Status AttentionLayer::Run(const Stream& stream, const AttentionCall& call, const TensorView& residual) {
  const bool gives = call.rebalancing != nullptr && call.rebalancing->active();
  const int64_t computed = call.batch->num_rows();
  const int64_t all_rows = std::max(computed, call.batch->num_own_rows());
  SY_CHECK(call.saved == nullptr || !gives);
  const TensorView qkv = call.saved != nullptr ? call.saved->qkv : qkv_.Rows(all_rows);
  const TensorView attended = call.saved != nullptr ? call.saved->attended : attended_.Rows(all_rows);
  if (computed > 0) RETURN_IF_ERROR(ProjectIn(stream, call, residual, qkv.Rows(0, computed)));
  if (computed > 0 && call.saved != nullptr && call.saved->projected.rank() != 0) {
    RETURN_IF_ERROR(CopyTensor(stream, qkv, call.saved->projected));
  }
  const ops::QkvDesc desc = QkvDescOf(config_, *call.weights);
  if (gives) {
    if (computed > 0) {
      RETURN_IF_ERROR(ops::PrepareQkv(stream, desc, rope_, call.batch->table_rows(), qkv.Rows(0, computed)));
    }
    RETURN_IF_ERROR(AttendGiven(stream, call, qkv, attended));
  } else if (computed > 0) {
    const ops::SequenceBatch sequences = call.batch->own_sequences();
    RETURN_IF_ERROR(ops::PrepareAndCacheQkv(stream, desc, rope_, call.batch->table_rows(), qkv, sequences, call.cache));
    RETURN_IF_ERROR(Attend(stream, call, sequences, qkv, attended));
  }
  const auto project_out = [&] { return ProjectOut(stream, call, attended, residual); };
  if (!gives) return project_out();
  // A giver goes on while its rows travel; a borrower waits for them.
  if (!call.rebalancing->borrows()) RETURN_IF_ERROR(project_out());
  RETURN_IF_ERROR(call.rebalancing->FinishOut(attended));
  return call.rebalancing->borrows() ? project_out() : absl::OkStatus();
}

}  // namespace switchyard::model
