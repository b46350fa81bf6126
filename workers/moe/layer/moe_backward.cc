#include "workers/moe/layer/moe_backward.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/dispatch/dispatch_gradient.h"
#include "workers/moe/groups/group_rows.h"
#include "workers/moe/layer/moe_checks.h"
#include "workers/moe/layer/moe_scratch.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/moe/layer/saved_parts.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/moe/layer/shared_gate.h"
#include "workers/ops/activation/activation_backward.h"
#include "workers/ops/activation/bias_gradient.h"
#include "workers/ops/activation/expert_bias_backward.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/ops/gemm/grouped_gemm.h"
#include "workers/ops/norm/row_scale_backward.h"
#include "workers/ops/router/router_backward.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {
class MoeBackward::Impl : public MicroOpRunner {
 public:
  absl::Status Run(const MoeContext& context, const LayerContext& at, const MoeLayer& moe,
                   const MoeBackwardWeights& weights, const MoeBackwardRows& rows) {
    context_ = &context;
    layer_ = at;
    layer_.x = rows.x;
    layer_.layout = context.layout;
    moe_ = &moe;
    weights_ = &weights;
    rows_ = rows;
    const absl::Status status = CheckAndRun();
    if (!status.ok()) {
      // The others wait for this rank's gradients: end it for them, too.
      AbortGroups(context, status.message());
      for (auto& gradient : gradients_) gradient->Drop();
      groups_.Drop();
      if (at.saved != nullptr) {
        for (auto& chunk : at.saved->chunks) chunk->exchange.Drop();
      }
      if (context.offload != nullptr) context.offload->Drain();
    }
    return status;
  }

  absl::Status Start(const pipeline::MicroOp& op) override {
    layer_.PointTo(op);
    const pipeline::ChunkRange range = layer_.rows();
    switch (op.kind) {
      case pipeline::MicroOpKind::kGate:
        return Router();
      case pipeline::MicroOpKind::kDispatch:
        if (op.pass == pipeline::Pass::kForward) return StartDispatchAgain(op);
        gradient().UseOutputGradients(&scratch().output_gradients[op.SlotOf(pipeline::BufferKind::kOutputGradient)]);
        return gradient().StartResend(*context_, layer_, exchange().routes(), dy_.Rows(range.begin, range.count),
                                      sent_weight_.Rows(range.begin, range.count));
      case pipeline::MicroOpKind::kExpert:
        return op.experts == pipeline::ExpertSet::kShared ? SharedExpert(HiddenGradientOf(op)) : RoutedExperts(op);
      case pipeline::MicroOpKind::kCombine:
        return gradient().StartReturn(*context_, layer_);
      case pipeline::MicroOpKind::kWeights:
        return RoutedWeights(HiddenGradientOf(op));
      case pipeline::MicroOpKind::kRecompute:
        return Recompute(op);
      case pipeline::MicroOpKind::kRestore:
        return StartRestore(op);
      case pipeline::MicroOpKind::kSave:
        break;  // of forward
      case pipeline::MicroOpKind::kAllGather:
        if (op.group == pipeline::Group::kShards) return groups_.StartShards({dy_, sent_weight_});
        return groups_.StartGather(op, ReturnedGradients());
      case pipeline::MicroOpKind::kAllReduce:
        return groups_.StartSum(op, {gradient().dx(), gradient().dweight()});
    }
    return absl::InternalError("moe_backward: an op of no kind");
  }

  absl::Status Finish(const pipeline::MicroOp& op) override {
    layer_.PointTo(op);
    if (op.kind == pipeline::MicroOpKind::kRestore)
      return FinishParts(op, layer_.index, layer_.saved->chunk(layer_.chunk), context_->offload);
    if (op.kind == pipeline::MicroOpKind::kAllReduce) return groups_.FinishSum(op);
    if (op.kind == pipeline::MicroOpKind::kAllGather)
      return op.group == pipeline::Group::kShards ? TakeShards() : groups_.FinishGather(op);
    if (op.kind == pipeline::MicroOpKind::kDispatch) {
      if (op.pass == pipeline::Pass::kBackward) return gradient().FinishResend(*context_);
      return layer_.saved->chunk(layer_.chunk).exchange.FinishDispatchAgain(*context_);
    }
    SY_CHECK(op.kind == pipeline::MicroOpKind::kCombine);
    const pipeline::ChunkRange range = layer_.rows();
    if (groups_.adds_alone())
      return gradient().FinishReturn(*context_, dx_.Rows(range.begin, range.count),
                                     d_sent_weight_.Rows(range.begin, range.count));
    RETURN_IF_ERROR(gradient().FinishPart(*context_, layer_));
    return groups_.Returned(ReturnedGradients());
  }

 private:
  HiddenGradientScratch& HiddenGradientOf(const pipeline::MicroOp& op) {
    return scratch().hidden_gradients[op.SlotOf(pipeline::BufferKind::kHiddenGradient)];
  }

  // Sends gradients of the rows of all shards from here on.
  absl::Status TakeShards() {
    ASSIGN_OR_RETURN(const std::vector<TensorView> gathered,
                     groups_.FinishShards({&gathered_memory_, &gathered_weight_memory_}));
    dy_ = gathered[0];
    sent_weight_ = gathered[1];
    layer_.sent = {0, dy_.dim(0)};
    return absl::OkStatus();
  }

  ReturnedRows ReturnedGradients() {
    return {.rows = gradient().gradients(),
            .numbers = gradient().numbers(),
            .slot_row = exchange().routes().slot_row,
            .first_choice = layer_.rows().begin * moe_->desc.router.top_k,
            .num_shards = context_->groups.num_shards};
  }

  // Sends the present chunk's rows as forward did.
  absl::Status StartDispatchAgain(const pipeline::MicroOp& op) {
    HostDispatcher& exchange = layer_.saved->chunk(layer_.chunk).exchange;
    exchange.UseInputs(&scratch().inputs[op.SlotOf(pipeline::BufferKind::kInput)]);
    return exchange.StartDispatchAgain(*context_, layer_);
  }

  // Places the present chunk's hidden rows in memory of this op's slot.
  void PlaceHidden(const pipeline::MicroOp& op) {
    MoeSaved::Chunk& chunk = layer_.saved->chunk(layer_.chunk);
    HiddenScratch& memory = scratch().hidden[op.SlotOf(pipeline::BufferKind::kHidden)];
    const int64_t rows = chunk.exchange.x_rows().size(), ffn = moe_->desc.expert_ffn;
    chunk.hidden = memory.hidden.Rows(rows, ffn, moe_->desc.dtype);
    chunk.sums = memory.sums.Rows(rows, ops::SumsWidth(moe_->desc.activation, ffn), moe_->desc.dtype);
  }

  absl::Status Recompute(const pipeline::MicroOp& op) {
    const comm::Timed timed(&context_->stats->expert_seconds);
    PlaceHidden(op);
    const MoeSaved::Chunk& chunk = layer_.saved->chunk(layer_.chunk);
    const ops::ExpertFfnDesc desc = {.activation = moe_->desc.activation,
                                     .gate_up = moe_->weights.gate_up.group(),
                                     .down = {},
                                     .offsets = chunk.exchange.offsets(),
                                     .x_rows = chunk.exchange.x_rows(),
                                     .sums = chunk.sums,
                                     .up_biases = moe_->weights.up_biases};
    return adapters_.Hidden(*context_->stream, moe_->weights.adapters(), desc, Inputs(), chunk.hidden);
  }

  absl::Status StartRestore(const pipeline::MicroOp& op) {
    const int slot = op.SlotOf(pipeline::BufferKind::kInput);
    HostDispatcher& exchange = layer_.saved->chunk(layer_.chunk).exchange;
    if (slot < 0) PlaceHidden(op);
    if (slot >= 0 && exchange.holds_rows()) exchange.RestoreInputs(&scratch().inputs[slot]);
    for (const SavedPart& part : PartsOf(op, layer_.index, layer_.saved->chunk(layer_.chunk))) {
      context_->offload->StartRestore(part.key, BytesOf(part.rows));
    }
    return absl::OkStatus();
  }

  // The dispatched rows of the present chunk.
  TensorView Inputs() const {
    const pipeline::ChunkRange range = layer_.rows();
    const bool keeps = exchange().holds_rows() || layer_.saved->gathers_inputs;
    return keeps ? exchange().x() : rows_.x.Rows(range.begin, range.count);
  }

  // The parts of the present chunk.
  const HostDispatcher& exchange() const { return layer_.saved->chunk(layer_.chunk).exchange; }
  MoeScratch& scratch() { return context_->scratch != nullptr ? *context_->scratch : own_scratch_; }
  DispatchGradient& gradient() { return *gradients_[static_cast<size_t>(layer_.chunk)]; }

  absl::Status CheckAndRun() {
    RETURN_IF_ERROR(CheckBackward(*context_, *moe_, layer_.saved, *weights_, rows_));
    groups_.Begin(*context_, layer_.index, pipeline::Pass::kBackward, rows_.x.dim(0));
    const MoeLayerDesc& desc = moe_->desc;
    const int64_t all_rows = rows_.x.dim(0);
    const DType acc = AccDType(desc.dtype);
    const pipeline::ChunkRange gated = groups_.gated();
    const int64_t rows = gated.count;
    rows_.x = layer_.x = rows_.x.Rows(gated.begin, rows);
    layer_.cut = context_->schedule->cut;
    layer_.sent = groups_.sent();
    while (gradients_.size() < static_cast<size_t>(context_->schedule->num_chunks)) {
      gradients_.push_back(std::make_unique<DispatchGradient>());
    }
    TakeExperts();
    dy_ = rows_.d_residual.Rows(gated.begin, rows);
    if (acc != desc.dtype) {
      dy_ = dy_memory_.Rows(rows, desc.hidden, desc.dtype);
      RETURN_IF_ERROR(RoundRows(*context_->stream, rows_.d_residual.Rows(gated.begin, rows), dy_));
    }
    const bool in_place = rows_.d_x.dtype() == acc && rows_.d_x.contiguous();
    const TensorView all_dx = in_place ? rows_.d_x : dx_memory_.Rows(all_rows, desc.hidden, acc);
    RETURN_IF_ERROR(FillZero(*context_->stream, all_dx));
    dx_ = all_dx.Rows(gated.begin, rows);
    const GroupRows::Choices sent = groups_.OfShards(layer_.saved->topk_idx, layer_.saved->topk_weight);
    sent_weight_ = sent.topk_weight;
    d_sent_weight_ = d_topk_weight_memory_.Rows(rows, sent_weight_.dim(1), acc);
    groups_.SetRows({.to = all_dx, .weight = {}, .top_k = desc.router.top_k, .dtype = desc.dtype, .numbers = true},
                    layer_.saved->sent_idx);
    RETURN_IF_ERROR(RunSchedule(context_->schedule->backward, this, context_->watch));
    return in_place ? absl::OkStatus() : RoundRows(*context_->stream, all_dx, rows_.d_x);
  }

  // The experts' matrices, as grouped products take them.
  void TakeExperts() {
    gate_up_.clear();
    down_.clear();
    gate_up_gradients_.clear();
    down_gradients_.clear();
    up_bias_gradients_.clear();
    down_bias_gradients_.clear();
    gate_up_adapters_ = down_adapters_ = {};
    for (const ops::FfnGradients& expert : weights_->experts) {
      if (moe_->weights.gate_up_adapters.any()) gate_up_adapters_.Add(expert.gate_up_adapter);
      if (moe_->weights.down_adapters.any()) down_adapters_.Add(expert.down_adapter);
      gate_up_.push_back(expert.gate_up.transposed);
      down_.push_back(expert.down.transposed);
      gate_up_gradients_.push_back(expert.gate_up.gradient);
      down_gradients_.push_back(expert.down.gradient);
      if (moe_->weights.up_biases.empty()) continue;
      up_bias_gradients_.push_back(expert.up_bias);
      down_bias_gradients_.push_back(expert.down_bias);
    }
  }

  // Computes the gradients of the inputs from those of the outputs.  Leaves d_sums and weighted for RoutedWeights.
  absl::Status RoutedExperts(const pipeline::MicroOp& op) {
    const comm::Timed timed(&context_->stats->expert_seconds);
    const MoeSaved::Chunk& saved = layer_.saved->chunk(layer_.chunk);
    const HostDispatcher& exchange = saved.exchange;
    DispatchGradient& gradient = this->gradient();
    gradient.TakeInputGradients(&scratch().input_gradients[op.SlotOf(pipeline::BufferKind::kInputGradient)]);
    HiddenGradientScratch& hidden = HiddenGradientOf(op);
    Take(gradient.dx().dim(0), moe_->desc.expert_ffn, &hidden);
    RETURN_IF_ERROR(ops::GroupedGemm(*context_->stream, {.x_rows = exchange.x_rows()}, gradient.dy(), down_,
                                     exchange.offsets(), hidden.d_hidden));
    const MoeLayerWeights& weights = moe_->weights;
    RETURN_IF_ERROR(adapters_.AddInputGradient(*context_->stream, weights.down_adapters.scale, down_adapters_,
                                               {exchange.offsets(), exchange.x_rows()}, gradient.dy(),
                                               hidden.d_hidden));
    RETURN_IF_ERROR(ops::RowScaleBackward(*context_->stream, {.x = saved.hidden,
                                                              .weight = gradient.weight(),
                                                              .dy = hidden.d_hidden,
                                                              .y = hidden.weighted,
                                                              .dweight = gradient.dweight()}));
    RETURN_IF_ERROR(BiasesBackward());
    RETURN_IF_ERROR(
        ops::ActivationBackward(*context_->stream, moe_->desc.activation, saved.sums, hidden.d_hidden, hidden.d_sums));
    RETURN_IF_ERROR(
        ops::GroupedGemm(*context_->stream, {}, hidden.d_sums, gate_up_, exchange.offsets(), gradient.dx()));
    return adapters_.AddInputGradient(*context_->stream, weights.gate_up_adapters.scale, gate_up_adapters_,
                                      {exchange.offsets()}, hidden.d_sums, gradient.dx());
  }

  // Adds the output biases' part to the weights' gradients, and computes the biases' own gradients.
  absl::Status BiasesBackward() {
    if (moe_->weights.down_biases.empty()) return absl::OkStatus();
    const HostDispatcher& exchange = this->exchange();
    const DispatchGradient& gradient = this->gradient();
    return ops::ExpertBiasBackward(*context_->stream,
                                   {.offsets = exchange.offsets(),
                                    .rows = exchange.x_rows(),
                                    .biases = moe_->weights.down_biases,
                                    .gradients = down_bias_gradients_},
                                   gradient.dy(), gradient.weight(), gradient.dweight());
  }

  absl::Status RoutedWeights(const HiddenGradientScratch& hidden) {
    const comm::Timed timed(&context_->stats->expert_seconds);
    const HostDispatcher& exchange = this->exchange();
    const DispatchGradient& gradient = this->gradient();
    for (size_t e = 0; e < up_bias_gradients_.size(); ++e) {
      if (up_bias_gradients_[e].raw() == nullptr) continue;
      const int32_t begin = exchange.offsets().data()[e], end = exchange.offsets().data()[e + 1];
      RETURN_IF_ERROR(
          ops::BiasGradient(*context_->stream, hidden.d_sums.Rows(begin, end - begin), up_bias_gradients_[e]));
    }
    RETURN_IF_ERROR(ops::GroupedWeightGradient(*context_->stream,
                                               {.offsets = exchange.offsets(), .x_rows = exchange.x_rows()},
                                               hidden.d_sums, Inputs(), gate_up_gradients_));
    RETURN_IF_ERROR(adapters_.AddGradients(*context_->stream, moe_->weights.gate_up_adapters, gate_up_adapters_,
                                           {exchange.offsets(), exchange.x_rows()}, hidden.d_sums, Inputs()));
    const TensorView dy = scratch().sorted_gradients.Rows(gradient.dx().dim(0), moe_->desc.hidden, moe_->desc.dtype);
    RETURN_IF_ERROR(ops::GatherRows(*context_->stream, gradient.dy(), exchange.x_rows(), dy));
    RETURN_IF_ERROR(adapters_.AddGradients(*context_->stream, moe_->weights.down_adapters, down_adapters_,
                                           {exchange.offsets()}, dy, hidden.weighted));
    return ops::GroupedWeightGradient(*context_->stream, {.offsets = exchange.offsets()}, dy, hidden.weighted,
                                      down_gradients_);
  }

  // Adds the gate's share of dx and the shared expert's gradients, before any routed expert's.
  absl::Status SharedExpert(HiddenGradientScratch& hidden) {
    const comm::Timed timed(&context_->stats->expert_seconds);
    const Stream& stream = *context_->stream;
    const ops::FfnGradients& shared = *weights_->shared;
    const int64_t rows = rows_.x.dim(0);
    const DType acc = AccDType(moe_->desc.dtype);
    const bool gated = layer_.saved->shared_gate.rank() != 0;
    const TensorView gate = shared_gate_memory_.Rows(rows, 1, acc), d_gate = d_gate_memory_.Rows(rows, 1, acc);
    gated ? Sigmoid(layer_.saved->shared_gate, gate) : FillOnes(gate);
    Take(rows, moe_->desc.shared_ffn, &hidden);
    RETURN_IF_ERROR(ops::Gemm(stream, {}, dy_, *shared.down.transposed, {}, hidden.d_hidden));
    RETURN_IF_ERROR(ops::RowScaleBackward(stream, {.x = layer_.saved->shared_hidden,
                                                   .weight = gate,
                                                   .dy = hidden.d_hidden,
                                                   .y = hidden.weighted,
                                                   .dweight = d_gate}));
    RETURN_IF_ERROR(ops::SwiGluBackward(stream, layer_.saved->shared_sums, hidden.d_hidden, hidden.d_sums));
    RETURN_IF_ERROR(ops::WeightGradient(stream, dy_, hidden.weighted, shared.down.gradient));
    RETURN_IF_ERROR(ProductBackward(shared.gate_up, hidden.d_sums));
    if (!gated) return absl::OkStatus();
    const TensorView d_logit = d_logit_memory_.Rows(rows, 1, moe_->desc.dtype);
    SigmoidBackward(gate, d_gate, d_logit);
    return ProductBackward(weights_->shared_gate, d_logit);
  }

  absl::Status Router() {
    const int64_t rows = rows_.x.dim(0);
    const TensorView d_logits = d_logits_memory_.Rows(rows, context_->num_experts(), moe_->desc.dtype);
    const RouterLoss loss = groups_.adds_router_loss() ? rows_.router_loss : RouterLoss{};
    RETURN_IF_ERROR(ops::RouterBackward(
        *context_->stream,
        {.renormalize = moe_->desc.router.renormalize, .prob_gradient = loss.prob_gradient, .z_scale = loss.z_scale},
        layer_.saved->logits, layer_.saved->topk_idx,
        groups_.adds_alone() ? groups_.SumOfShards(d_sent_weight_) : groups_.numbers(), d_logits));
    return ProductBackward(weights_->router, d_logits);
  }

  // The backward of a product with x: adds its share of dx and of the matrix's gradient.
  absl::Status ProductBackward(const ops::TrainedMatrix& matrix, const TensorView& dy) {
    RETURN_IF_ERROR(ops::WeightGradient(*context_->stream, dy, rows_.x, matrix.gradient));
    return ops::Gemm(*context_->stream, {.accumulate = true}, dy, *matrix.transposed, {}, dx_);
  }

  void Take(int64_t rows, int64_t ffn, HiddenGradientScratch* hidden) const {
    const DType dtype = moe_->desc.dtype;
    hidden->weighted = hidden->weighted_memory.Rows(rows, ffn, dtype);
    hidden->d_hidden = hidden->d_hidden_memory.Rows(rows, ffn, dtype);
    hidden->d_sums = hidden->d_sums_memory.Rows(rows, ops::SumsWidth(moe_->desc.activation, ffn), dtype);
  }

  // The state of the present Run; borrowed.
  const MoeContext* context_ = nullptr;
  LayerContext layer_;
  const MoeLayer* moe_ = nullptr;
  const MoeBackwardWeights* weights_ = nullptr;
  MoeBackwardRows rows_;
  TensorView dy_, dx_;                                          // [T, H] model dtype, AccDType
  TensorView sent_weight_, d_sent_weight_;                      // [rows that are sent, K], [T, K]; for shards K * S
  std::vector<const ops::Weight*> gate_up_, down_;              // [El] transposed
  std::vector<TensorView> gate_up_gradients_, down_gradients_;  // [El]
  std::vector<TensorView> up_bias_gradients_, down_bias_gradients_;  // [El], or none
  TrainedExpertAdapters gate_up_adapters_, down_adapters_;
  ExpertAdapterProducts adapters_;

  GroupRows groups_;
  std::vector<std::unique_ptr<DispatchGradient>> gradients_;  // [chunks]
  MoeScratch own_scratch_;
  RowScratch dy_memory_, dx_memory_, d_topk_weight_memory_, d_logits_memory_;
  RowScratch gathered_memory_, gathered_weight_memory_;
  RowScratch shared_gate_memory_, d_gate_memory_, d_logit_memory_;
};

MoeBackward::MoeBackward() : impl_(std::make_unique<Impl>()) {}
MoeBackward::~MoeBackward() = default;

absl::Status MoeBackward::Run(const MoeContext& context, const LayerContext& at, const MoeLayer& layer,
                              const MoeBackwardWeights& weights, const MoeBackwardRows& rows) {
  SY_CHECK(context.stream != nullptr && context.comm != nullptr && context.layout != nullptr &&
           context.schedule != nullptr && context.stats != nullptr);
  return impl_->Run(context, at, layer, weights, rows);
}

}  // namespace switchyard::moe
