#include "workers/moe/layer/moe_backward.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/dispatch/exchange_gradient.h"
#include "workers/moe/layer/moe_backward_checks.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/ops/activation/activation_backward.h"
#include "workers/ops/activation/bias_gradient.h"
#include "workers/ops/activation/expert_bias_backward.h"
#include "workers/ops/activation/swiglu_backward.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/grouped_gemm.h"
#include "workers/ops/norm/row_scale_backward.h"
#include "workers/ops/router/router_backward.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

// dlogit = dgate * the derivative of the sigmoid that made `gate`.
void SigmoidBackward(const TensorView& gate, const TensorView& d_gate, const TensorView& d_logit) {
  VisitDType(d_logit.dtype(), [&]<class Elem>() {
    for (int64_t t = 0; t < gate.dim(0); ++t) {
      const Acc<Elem> s = *gate.row<Acc<Elem>>(t);
      *d_logit.row<Elem>(t) = static_cast<Elem>(*d_gate.row<Acc<Elem>>(t) * s * (1 - s));
    }
  });
}

void Sigmoid(const TensorView& logit, const TensorView& gate) {
  VisitDType(gate.dtype(), [&]<class Number>() {
    for (int64_t t = 0; t < gate.dim(0); ++t) {
      const auto g = static_cast<Acc<Number>>(*logit.row<Number>(t));
      *gate.row<Number>(t) = static_cast<Number>(1 / (1 + std::exp(-g)));
    }
  });
}

void FillOnes(const TensorView& numbers) {
  VisitDType(numbers.dtype(), [&]<class Number>() {
    for (int64_t t = 0; t < numbers.dim(0); ++t) *numbers.row<Number>(t) = static_cast<Number>(1);
  });
}

}  // namespace

class MoeBackward::Impl : public MicroOpRunner {
 public:
  absl::Status Run(const MoeStep& step, const MoeLayer& layer, const MoeBackwardWeights& weights,
                   const MoeBackwardRows& rows) {
    step_ = &step;
    layer_ = &layer;
    weights_ = &weights;
    rows_ = rows;
    saved_ = step.saved;
    const absl::Status status = CheckAndRun();
    if (!status.ok()) {
      // The others wait for this rank's gradients: end it for them, too.
      if (step.comm->world() > 1) step.comm->Abort(status.message());
      for (auto& gradient : gradients_) gradient->Drop();
    }
    unread_stats_.Clear();
    return status;
  }

  absl::Status Start(const MicroOp& op) override {
    const ChunkRange range = RangeOf(op);
    switch (op.kind) {
      case MicroOpKind::kSplit:
      case MicroOpKind::kGate:
        return absl::OkStatus();  // the router's turn comes when all weights have their gradients
      case MicroOpKind::kDispatch:
        context_.chunk = op.chunk;
        return gradients_[op.chunk]->StartResend(context_, ExchangeOf(op).routes(), dy_.Rows(range.begin, range.count),
                                                 saved_->topk_weight.Rows(range.begin, range.count));
      case MicroOpKind::kExpert:
        return op.experts == ExpertSet::kShared ? SharedExpert() : RoutedExperts(op);
      case MicroOpKind::kCombine:
        context_.chunk = op.chunk;
        RETURN_IF_ERROR(gradients_[op.chunk]->StartReturn(context_));
        return RoutedWeights(op);
      default:
        return absl::UnimplementedError(absl::StrCat("moe_backward: op ", MicroOpKindName(op.kind), " of schedule ",
                                                     step_->schedule->name, " has no backward yet"));
    }
  }

  absl::Status Finish(const MicroOp& op) override {
    context_.chunk = op.chunk;
    ExchangeGradient& gradient = *gradients_[op.chunk];
    if (op.kind == MicroOpKind::kDispatch) return gradient.FinishResend(context_);
    SY_CHECK(op.kind == MicroOpKind::kCombine);
    const ChunkRange range = RangeOf(op);
    return gradient.FinishReturn(context_, dx_.Rows(range.begin, range.count),
                                 d_topk_weight_.Rows(range.begin, range.count));
  }

 private:
  ChunkRange RangeOf(const MicroOp& op) const { return RowsOfChunk(rows_.x.dim(0), op.chunk, op.num_chunks); }
  const HostExchange& ExchangeOf(const MicroOp& op) const { return saved_->chunk(op.chunk).exchange; }

  absl::Status CheckAndRun() {
    RETURN_IF_ERROR(CheckBackward(*step_, *layer_, *weights_, rows_));
    const MoeLayerDesc& desc = layer_->desc;
    const int64_t rows = rows_.x.dim(0);
    const DType acc = AccDType(desc.dtype);
    context_ = {.stream = step_->stream,
                .comm = step_->comm,
                .layout = step_->layout,
                .deadline = step_->deadline,
                .stats = step_->stats != nullptr ? step_->stats : &unread_stats_,
                .moe_layer = step_->moe_layer};
    while (gradients_.size() < static_cast<size_t>(step_->schedule->num_chunks)) {
      gradients_.push_back(std::make_unique<ExchangeGradient>());
    }
    TakeExperts();
    dy_ = rows_.d_residual;
    if (acc != desc.dtype) {
      dy_ = dy_memory_.Rows(rows, desc.hidden, desc.dtype);
      RETURN_IF_ERROR(RoundRows(*step_->stream, rows_.d_residual, dy_));
    }
    const bool in_place = rows_.d_x.dtype() == acc && rows_.d_x.contiguous();
    dx_ = in_place ? rows_.d_x : dx_memory_.Rows(rows, desc.hidden, acc);
    RETURN_IF_ERROR(FillZero(*step_->stream, dx_));
    d_topk_weight_ = d_topk_weight_memory_.Rows(rows, desc.router.top_k, acc);
    RETURN_IF_ERROR(RunSchedule(*step_->schedule, this, step_->watch));
    RETURN_IF_ERROR(Router());
    return in_place ? absl::OkStatus() : RoundRows(*step_->stream, dx_, rows_.d_x);
  }

  // The experts' matrices, as grouped products take them.
  void TakeExperts() {
    gate_up_.clear();
    down_.clear();
    gate_up_gradients_.clear();
    down_gradients_.clear();
    up_bias_gradients_.clear();
    down_bias_gradients_.clear();
    for (const FfnGradients& expert : weights_->experts) {
      gate_up_.push_back(expert.gate_up.transposed);
      down_.push_back(expert.down.transposed);
      gate_up_gradients_.push_back(expert.gate_up.gradient);
      down_gradients_.push_back(expert.down.gradient);
      if (layer_->weights.up_biases.empty()) continue;
      up_bias_gradients_.push_back(expert.up_bias);
      down_bias_gradients_.push_back(expert.down_bias);
    }
  }

  // From the gradients of outputs to those of inputs.  Leaves d_sums_ and weighted_ for RoutedWeights.
  absl::Status RoutedExperts(const MicroOp& op) {
    const Timed timed(&context_.stats->expert_seconds);
    const MoeSaved::Chunk& saved = saved_->chunk(op.chunk);
    const HostExchange& exchange = saved.exchange;
    const ExchangeGradient& gradient = *gradients_[op.chunk];
    const int64_t rows = gradient.dx().dim(0), ffn = layer_->desc.expert_ffn;
    experts_chunk_ = op.chunk;
    const TensorView d_hidden = TakeHidden(rows, ffn);
    RETURN_IF_ERROR(
        GroupedGemm(*step_->stream, {.x_rows = exchange.x_rows()}, gradient.dy(), down_, exchange.offsets(), d_hidden));
    RETURN_IF_ERROR(RowScaleBackward(*step_->stream, {.x = saved.hidden,
                                                      .weight = gradient.weight(),
                                                      .dy = d_hidden,
                                                      .y = weighted_,
                                                      .dweight = gradient.dweight()}));
    RETURN_IF_ERROR(BiasesBackward(op));
    RETURN_IF_ERROR(ActivationBackward(*step_->stream, layer_->desc.activation, saved.sums, d_hidden, d_sums_));
    return GroupedGemm(*step_->stream, {}, d_sums_, gate_up_, exchange.offsets(), gradient.dx());
  }

  // What the biases of outputs have of the weights' gradients, and theirs.
  absl::Status BiasesBackward(const MicroOp& op) {
    if (layer_->weights.down_biases.empty()) return absl::OkStatus();
    const HostExchange& exchange = ExchangeOf(op);
    const ExchangeGradient& gradient = *gradients_[op.chunk];
    return ExpertBiasBackward(*step_->stream,
                              {.offsets = exchange.offsets(),
                               .rows = exchange.x_rows(),
                               .biases = layer_->weights.down_biases,
                               .gradients = down_bias_gradients_},
                              gradient.dy(), gradient.weight(), gradient.dweight());
  }

  // While what RoutedExperts made is on its way.
  absl::Status RoutedWeights(const MicroOp& op) {
    const Timed timed(&context_.stats->expert_seconds);
    const HostExchange& exchange = ExchangeOf(op);
    const ExchangeGradient& gradient = *gradients_[op.chunk];
    SY_CHECK_EQ(experts_chunk_, op.chunk);  // a schedule combines what it has just computed
    for (size_t e = 0; e < up_bias_gradients_.size(); ++e) {
      const int32_t begin = exchange.offsets().data()[e], end = exchange.offsets().data()[e + 1];
      RETURN_IF_ERROR(BiasGradient(*step_->stream, d_sums_.Rows(begin, end - begin), up_bias_gradients_[e]));
    }
    const ChunkRange range = RangeOf(op);
    const TensorView x = exchange.holds_rows() ? exchange.x() : rows_.x.Rows(range.begin, range.count);
    RETURN_IF_ERROR(GroupedWeightGradient(*step_->stream, {.offsets = exchange.offsets(), .x_rows = exchange.x_rows()},
                                          d_sums_, x, gate_up_gradients_));
    const TensorView dy = sorted_dy_memory_.Rows(gradient.dx().dim(0), layer_->desc.hidden, layer_->desc.dtype);
    RETURN_IF_ERROR(GatherRows(*step_->stream, gradient.dy(), exchange.x_rows(), dy));
    return GroupedWeightGradient(*step_->stream, {.offsets = exchange.offsets()}, dy, weighted_, down_gradients_);
  }

  // The gate's share of dx, and the rest of what the shared expert says, is added before any expert's.
  absl::Status SharedExpert() {
    const Timed timed(&context_.stats->expert_seconds);
    const Stream& stream = *step_->stream;
    const FfnGradients& shared = *weights_->shared;
    const int64_t rows = rows_.x.dim(0);
    const DType acc = AccDType(layer_->desc.dtype);
    const bool gated = saved_->shared_gate.rank() != 0;
    experts_chunk_ = -1;
    const TensorView gate = shared_gate_memory_.Rows(rows, 1, acc), d_gate = d_gate_memory_.Rows(rows, 1, acc);
    gated ? Sigmoid(saved_->shared_gate, gate) : FillOnes(gate);
    const TensorView d_hidden = TakeHidden(rows, layer_->desc.shared_ffn);
    RETURN_IF_ERROR(Gemm(stream, {}, dy_, *shared.down.transposed, {}, d_hidden));
    RETURN_IF_ERROR(RowScaleBackward(
        stream, {.x = saved_->shared_hidden, .weight = gate, .dy = d_hidden, .y = weighted_, .dweight = d_gate}));
    RETURN_IF_ERROR(SwiGluBackward(stream, saved_->shared_sums, d_hidden, d_sums_));
    RETURN_IF_ERROR(WeightGradient(stream, dy_, weighted_, shared.down.gradient));
    RETURN_IF_ERROR(ProductBackward(shared.gate_up, d_sums_));
    if (!gated) return absl::OkStatus();
    const TensorView d_logit = d_logit_memory_.Rows(rows, 1, layer_->desc.dtype);
    SigmoidBackward(gate, d_gate, d_logit);
    return ProductBackward(weights_->shared_gate, d_logit);
  }

  absl::Status Router() {
    const int64_t rows = rows_.x.dim(0);
    const TensorView d_logits = d_logits_memory_.Rows(rows, step_->layout->num_experts(), layer_->desc.dtype);
    RETURN_IF_ERROR(RouterBackward(*step_->stream,
                                   {.renormalize = layer_->desc.router.renormalize,
                                    .prob_gradient = rows_.router_loss.prob_gradient,
                                    .z_scale = rows_.router_loss.z_scale},
                                   saved_->logits, saved_->topk_idx, d_topk_weight_, d_logits));
    return ProductBackward(weights_->router, d_logits);
  }

  // Of a product with x: its share of dx and of the matrix's gradient.
  absl::Status ProductBackward(const TrainedMatrix& matrix, const TensorView& dy) {
    RETURN_IF_ERROR(WeightGradient(*step_->stream, dy, rows_.x, matrix.gradient));
    return Gemm(*step_->stream, {.accumulate = true}, dy, *matrix.transposed, {}, dx_);
  }

  // Also sets weighted_ and d_sums_.
  TensorView TakeHidden(int64_t rows, int64_t ffn) {
    const DType dtype = layer_->desc.dtype;
    weighted_ = weighted_memory_.Rows(rows, ffn, dtype);
    d_sums_ = d_sums_memory_.Rows(rows, SumsWidth(layer_->desc.activation, ffn), dtype);
    return d_hidden_memory_.Rows(rows, ffn, dtype);
  }

  // Of the present Run; borrowed.
  const MoeStep* step_ = nullptr;
  const MoeLayer* layer_ = nullptr;
  const MoeBackwardWeights* weights_ = nullptr;
  MoeBackwardRows rows_;
  MoeSaved* saved_ = nullptr;
  MoeStats unread_stats_;  // where statistics go that nobody asked for
  ExchangeContext context_;
  TensorView dy_, dx_;                                          // [T, H] model dtype, AccDType
  TensorView d_topk_weight_;                                    // [T, K]
  TensorView weighted_, d_sums_;                                // [rows, F], [rows, 2F] of the experts that ran last
  int experts_chunk_ = 0;                                       // whose they are
  std::vector<const Weight*> gate_up_, down_;                   // [El] transposed
  std::vector<TensorView> gate_up_gradients_, down_gradients_;  // [El]
  std::vector<TensorView> up_bias_gradients_, down_bias_gradients_;  // [El], or none

  std::vector<std::unique_ptr<ExchangeGradient>> gradients_;  // [chunks]
  RowScratch dy_memory_, dx_memory_, d_topk_weight_memory_, d_logits_memory_, weighted_memory_, d_sums_memory_;
  RowScratch d_hidden_memory_, sorted_dy_memory_, shared_gate_memory_, d_gate_memory_, d_logit_memory_;
};

MoeBackward::MoeBackward() : impl_(std::make_unique<Impl>()) {}
MoeBackward::~MoeBackward() = default;

absl::Status MoeBackward::Run(const MoeStep& step, const MoeLayer& layer, const MoeBackwardWeights& weights,
                              const MoeBackwardRows& rows) {
  SY_CHECK(step.stream != nullptr && step.comm != nullptr && step.layout != nullptr && step.schedule != nullptr);
  return impl_->Run(step, layer, weights, rows);
}

}  // namespace switchyard
