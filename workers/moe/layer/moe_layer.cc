#include "workers/moe/layer/moe_layer.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/groups/group_rows.h"
#include "workers/moe/layer/layer_router.h"
#include "workers/moe/layer/moe_checks.h"
#include "workers/moe/layer/moe_saved.h"
#include "workers/moe/layer/moe_scratch.h"
#include "workers/moe/layer/saved_parts.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/moe/layer/wave_weights.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {

class MoeExecutor::Impl : public MicroOpRunner {
 public:
  explicit Impl(DispatcherMaker make_exchange) : make_exchange_(make_exchange) {}

  absl::Status Run(const MoeContext& context, const LayerContext& at, const MoeLayer& moe, const TensorView& x,
                   const TensorView& residual) {
    context_ = &context;
    layer_ = at;
    layer_.x = x;
    moe_ = &moe;
    residual_ = residual;
    if (layer_.saved != nullptr) layer_.saved->num_chunks = 0;
    const absl::Status status = CheckAndRun();
    if (status.ok()) return status;
    // The others wait for this rank's rows: end it for them, too.
    AbortGroups(context, status.message());
    for (auto& exchange : exchanges()) exchange->Drop();
    groups_.Drop();
    if (context.offload != nullptr) context.offload->Drain();
    if (layer_.saved != nullptr) {
      for (auto& chunk : layer_.saved->chunks) chunk->exchange.Drop();
    }
    return status;
  }

  absl::Status Reserve(const MoeCapacity& room, const MoeLayerDesc& desc) {
    context_ = nullptr;  // no Run
    const Device device = room.stream->device();
    auto& exchanges = exchanges_[static_cast<size_t>(room.exchange)];
    if (exchanges.empty()) exchanges.push_back(make_exchange_(device, room.exchange));
    RETURN_IF_ERROR(exchanges[0]->Reserve({.stream = room.stream,
                                           .layout = room.layout,
                                           .rank = room.rank,
                                           .rows = room.rows,
                                           .top_k = desc.router.top_k,
                                           .hidden = desc.hidden,
                                           .dtype = desc.dtype,
                                           .split = room.offloaded}));
    RETURN_IF_ERROR(router_.Reserve(desc, room.rows, room.layout->num_experts(), device));
    if (room.offloaded) {
      RETURN_IF_ERROR(wave_.Reserve(device, static_cast<int64_t>(room.layout->Residents(room.rank).size())));
    }
    RETURN_IF_ERROR(
        own_scratch_.hidden[0].hidden.Take(exchanges[0]->y().dim(0), desc.expert_ffn, desc.dtype, device).status());
    return desc.shared_ffn > 0 ? TakeShared(desc, room.rows, device, nullptr, 0).status() : absl::OkStatus();
  }

  // The schedule decides the order of these, and their rows.
  absl::Status Start(const pipeline::MicroOp& op) override {
    layer_.PointTo(op);
    switch (op.kind) {
      case pipeline::MicroOpKind::kGate:
        return Gate();
      case pipeline::MicroOpKind::kDispatch:
        layer_.sent = groups_.sent();
        layer_.stays = op.group == pipeline::Group::kSelf;
        exchange().UseInputs(&InputsOf(op));
        return exchange().StartDispatch(*context_, layer_);
      case pipeline::MicroOpKind::kExpert:
        return op.experts == pipeline::ExpertSet::kShared ? SharedExpert(op) : RoutedExperts(op);
      case pipeline::MicroOpKind::kCombine:
        return exchange().StartCombine(*context_, layer_);
      case pipeline::MicroOpKind::kSave:
        return StartSave(op);
      case pipeline::MicroOpKind::kWeights:
      case pipeline::MicroOpKind::kRecompute:
      case pipeline::MicroOpKind::kRestore:
        break;  // of backward
      case pipeline::MicroOpKind::kAllGather:
        if (op.group == pipeline::Group::kShards) return groups_.StartShards({layer_.x, layer_.topk_idx});
        return groups_.StartGather(op, ReturnedOutputs());
      case pipeline::MicroOpKind::kAllReduce:
        return groups_.StartSum(op, {exchange().y()});
    }
    return absl::InternalError(absl::StrCat("moe_layer: no forward op: ", pipeline::MicroOpKindName(op.kind)));
  }

  absl::Status Finish(const pipeline::MicroOp& op) override {
    layer_.PointTo(op);
    if (op.kind == pipeline::MicroOpKind::kDispatch) return exchange().FinishDispatch(*context_, layer_);
    if (op.kind == pipeline::MicroOpKind::kSave) {
      if (layer_.saved == nullptr) return absl::OkStatus();
      return FinishParts(op, layer_.index, layer_.saved->chunk(layer_.chunk), context_->offload);
    }
    if (op.kind == pipeline::MicroOpKind::kAllReduce) return groups_.FinishSum(op);
    if (op.kind == pipeline::MicroOpKind::kAllGather)
      return op.group == pipeline::Group::kShards ? TakeShards() : groups_.FinishGather(op);
    SY_CHECK(op.kind == pipeline::MicroOpKind::kCombine);
    if (groups_.adds_alone()) return AddToResidual();
    RETURN_IF_ERROR(host().FinishPart(*context_, layer_));
    return groups_.Returned(ReturnedOutputs());
  }

  const TensorView& topk_idx() const { return layer_.topk_idx; }

 private:
  absl::Status CheckAndRun() {
    SY_CHECK_EQ(context_->layout->num_ranks(), context_->comm->world());
    RETURN_IF_ERROR(CheckRows(moe_->desc, layer_.x, residual_));
    RETURN_IF_ERROR(CheckLayer(*context_, *moe_));
    RETURN_IF_ERROR(CheckSchedule(*context_, *moe_));
    if (layer_.saved != nullptr) RETURN_IF_ERROR(CheckSaved(*context_, *moe_));
    groups_.Begin(*context_, layer_.index, pipeline::Pass::kForward, layer_.x.dim(0));
    all_residual_ = residual_;
    const pipeline::ChunkRange gated = groups_.gated();
    layer_.x = layer_.x.Rows(gated.begin, gated.count);
    residual_ = residual_.Rows(gated.begin, gated.count);
    layer_.cut = context_->schedule->cut;
    RETURN_IF_ERROR(TakeExchanges());
    RETURN_IF_ERROR(router_.Begin(*context_, moe_->desc, &layer_));
    shared_ = TensorView();
    shared_gate_ = TensorView();
    keeps_inputs_ = layer_.saved != nullptr && context_->schedule->Keeps(pipeline::BufferKind::kInput);
    keeps_hidden_ = layer_.saved != nullptr && context_->schedule->Keeps(pipeline::BufferKind::kHidden);
    wants_sums_ =
        keeps_hidden_ || (layer_.saved != nullptr && context_->schedule->Saves(pipeline::BufferKind::kHidden));
    layer_seconds_ = 0;
    const int64_t rows_before = context_->stats->expert_rows;
    RETURN_IF_ERROR(RunSchedule(context_->schedule->forward, this, context_->watch));
    if (!groups_.plain()) {
      layer_.x = own_x_;
      layer_.topk_idx = own_topk_idx_;
    }
    if (layer_.saved != nullptr) Save(layer_.saved);
    context_->stats->CountLayer(layer_.index, context_->stats->expert_rows - rows_before,
                                context_->stream->device().is_cpu() ? layer_seconds_ : 0);
    return router_.CountChoices(*context_, layer_);
  }

  // As many as the schedule has chunks.
  absl::Status TakeExchanges() {
    for (int i = 0; i < context_->schedule->num_chunks; ++i) {
      if (layer_.saved != nullptr) {
        layer_.saved->chunk(i);
      } else if (exchanges().size() == static_cast<size_t>(i)) {
        exchanges().push_back(make_exchange_(context_->stream->device(), context_->exchange));
      }
    }
    if (groups_.plain() || layer_.saved != nullptr || exchanges()[0]->AsHost() != nullptr) return absl::OkStatus();
    return absl::UnimplementedError(
        "moe_layer: a program of shards, copies or peers wants rows that travel by the host");
  }

  absl::Status Gate() {
    RETURN_IF_ERROR(router_.Route(*context_, *moe_, &layer_));
    if (groups_.plain()) return absl::OkStatus();
    own_x_ = layer_.x;
    own_topk_idx_ = layer_.topk_idx;
    groups_.SetRows({.to = all_residual_,
                     .weight = router_.topk_weight(),
                     .top_k = moe_->desc.router.top_k,
                     .dtype = moe_->desc.dtype},
                    own_topk_idx_);
    const GroupRows::Choices sent = groups_.OfShards(layer_.topk_idx, layer_.topk_weight);
    layer_.topk_idx = sent.topk_idx;
    layer_.topk_weight = sent.topk_weight;
    return absl::OkStatus();
  }

  // Sends the rows of all shards from here on.
  absl::Status TakeShards() {
    RowScratch& memory = layer_.saved != nullptr ? layer_.saved->gathered : gathered_memory_;
    ASSIGN_OR_RETURN(const std::vector<TensorView> gathered, groups_.FinishShards({&memory, &gathered_idx_memory_}));
    layer_.x = gathered[0];
    layer_.topk_idx = gathered[1];
    return absl::OkStatus();
  }

  ReturnedRows ReturnedOutputs() {
    return {.rows = host().outputs(),
            .numbers = {},
            .slot_row = host().routes().slot_row,
            .first_choice = layer_.rows().begin * moe_->desc.router.top_k,
            .num_shards = context_->groups.num_shards};
  }

  // The memory of an op's slots.
  RowScratch& InputsOf(const pipeline::MicroOp& op) {
    const int slot = op.SlotOf(pipeline::BufferKind::kInput);
    return keeps_inputs_ ? layer_.saved->inputs[slot] : scratch().inputs[slot];
  }
  HiddenScratch& HiddenOf(const pipeline::MicroOp& op) {
    const int slot = op.SlotOf(pipeline::BufferKind::kHidden);
    return keeps_hidden_ ? layer_.saved->hidden[slot] : scratch().hidden[slot];
  }

  // A pass that saves nothing for a backward copies nothing either.
  absl::Status StartSave(const pipeline::MicroOp& op) {
    if (layer_.saved == nullptr) return absl::OkStatus();
    for (const SavedPart& part : PartsOf(op, layer_.index, layer_.saved->chunk(layer_.chunk))) {
      context_->offload->StartSave(part.key, BytesOf(part.rows));
    }
    return absl::OkStatus();
  }

  // Saves the rest.
  void Save(MoeSaved* saved) const {
    saved->num_chunks = context_->schedule->num_chunks;
    saved->keeps_inputs = keeps_inputs_;
    saved->keeps_hidden = keeps_hidden_;
    saved->gathers_inputs = groups_.gathers_inputs();
    saved->topk_idx = router_.chosen();
    saved->sent_idx = layer_.topk_idx;
    saved->topk_weight = router_.topk_weight();
    saved->logits = layer_.logits;
    saved->shared_gate = shared_gate_;
    if (moe_->desc.shared_ffn == 0) saved->shared_sums = saved->shared_hidden = TensorView();
  }

  // Also sets shared_ and shared_gate_.  Returns the shared expert's hidden rows.
  absl::StatusOr<TensorView> TakeShared(const MoeLayerDesc& desc, int64_t rows, Device device, MoeSaved* saved,
                                        int slot) {
    ASSIGN_OR_RETURN(shared_, shared_memory_.Take(rows, desc.hidden, desc.dtype, device));
    RowScratch& gate_memory = saved != nullptr ? saved->shared_gate_memory : shared_gate_memory_;
    ASSIGN_OR_RETURN(shared_gate_, gate_memory.Take(rows, 1, AccDType(desc.dtype), device));
    RowScratch& memory = saved != nullptr ? saved->shared_hidden_memory : scratch().hidden[slot].hidden;
    return memory.Take(rows, desc.shared_ffn, desc.dtype, device);
  }

  absl::Status RoutedExperts(const pipeline::MicroOp& op) {
    const comm::Timed timed(&layer_seconds_);
    TokenDispatcher& rows = exchange();
    rows.TakeOutputs(&scratch().outputs[op.SlotOf(pipeline::BufferKind::kOutput)]);
    const MoeLayerDesc& desc = moe_->desc;
    const MoeLayerWeights& weights = moe_->weights;
    MoeSaved::Chunk* const saved = layer_.saved != nullptr ? &layer_.saved->chunk(layer_.chunk) : nullptr;
    const TensorView& y = rows.y();
    HiddenScratch& memory = HiddenOf(op);
    ASSIGN_OR_RETURN(const TensorView hidden, memory.hidden.Take(y.dim(0), desc.expert_ffn, desc.dtype, y.device()));
    if (saved != nullptr) saved->hidden = hidden;
    if (wants_sums_) {
      saved->sums = memory.sums.Rows(hidden.dim(0), ops::SumsWidth(desc.activation, hidden.dim(1)), hidden.dtype());
    }
    ops::ExpertFfnDesc ffn = {.activation = desc.activation,
                              .gate_up = weights.gate_up.group(),
                              .down = weights.down.group(),
                              .offsets = rows.offsets(),
                              .x_rows = rows.x_rows(),
                              .sums = wants_sums_ ? saved->sums : TensorView(),
                              .up_biases = weights.up_biases,
                              .down_biases = weights.down_biases,
                              .clamp = desc.glu_clamp};
    const auto compute = [&]() -> absl::Status {
      const comm::Timed timed(&context_->stats->expert_seconds), routed(&context_->stats->routed_seconds);
      const absl::Time begun = MonotonicNow();
      RETURN_IF_ERROR(weights.adapted() ? adapters_.Ffn(*context_->stream, weights.adapters(), ffn, rows.x(), hidden, y)
                                        : ops::ExpertFfn(*context_->stream, ffn, rows.x(), hidden, y));
      if (context_->pace.any() && y.device().is_cpu()) absl::SleepFor(begun + PaceOf(ffn) - MonotonicNow());
      return absl::OkStatus();
    };
    if (layer_.standing != nullptr) {
      ffn.gate_up = layer_.standing->gate_up.group();
      ffn.down = layer_.standing->down.group();
    }
    if (layer_.standing != nullptr || weights.experts == nullptr) return compute();
    ffn.partial = true;
    ExpertRows sorted = {.experts = layer_.layout->Residents(context_->comm->rank()),
                         .later = RowsBehind(layer_, context_->num_experts(), &later_),
                         .x = rows.x(),
                         .x_rows = rows.x_rows(),
                         .y = y};
    ASSIGN_OR_RETURN(sorted.offsets, OffsetsOnHost(rows.offsets()));
    RETURN_IF_ERROR(wave_.Reserve(context_->stream->device(), static_cast<int64_t>(sorted.experts.size())));
    return weights.experts->RunLayer(
        *context_, layer_, sorted, [&](const ops::WeightGroup& gate_up, const ops::WeightGroup& down) -> absl::Status {
          ASSIGN_OR_RETURN(const WaveWeights::Groups groups, wave_.Send(*context_->stream, gate_up, down));
          ffn.gate_up = groups.gate_up;
          ffn.down = groups.down;
          return compute();
        });
  }

  // The least time of these experts' products, as MoeContext says.  REQUIRES: on the CPU.
  absl::Duration PaceOf(const ops::ExpertFfnDesc& ffn) const {
    double seconds = 0;
    for (int64_t i = 0; i < ffn.gate_up.size(); ++i) {
      const int32_t* const offset = ffn.offsets.data() + i;
      if (ffn.gate_up[i] != nullptr) seconds += context_->pace.Of(offset[1] - offset[0]);
    }
    return absl::Seconds(seconds);
  }

  // On a device the host waits for them.
  absl::StatusOr<absl::Span<const int32_t>> OffsetsOnHost(const IntView& offsets) {
    const TensorView numbers(const_cast<int32_t*>(offsets.data()), DType::kI32, {offsets.size()}, offsets.device());
    ASSIGN_OR_RETURN(const TensorView on_host, OnHost(*context_, numbers, &offsets_on_host_));
    return absl::MakeConstSpan(on_host.data<int32_t>(), static_cast<size_t>(on_host.NumElements()));
  }

  absl::Status SharedExpert(const pipeline::MicroOp& op) {
    const comm::Timed timed(&context_->stats->expert_seconds);
    const Stream& stream = *context_->stream;
    const MoeLayerWeights& weights = moe_->weights;
    const TensorView& x = layer_.x;
    ASSIGN_OR_RETURN(const TensorView hidden, TakeShared(moe_->desc, x.dim(0), stream.device(), layer_.saved,
                                                         op.SlotOf(pipeline::BufferKind::kHidden)));
    TensorView sums;
    if (layer_.saved != nullptr) {
      sums = layer_.saved->shared_sums_memory.Rows(hidden.dim(0), 2 * hidden.dim(1), hidden.dtype());
      layer_.saved->shared_hidden = hidden;
      layer_.saved->shared_sums = sums;
    }
    RETURN_IF_ERROR(ops::GatedGemm(stream, x, *weights.shared_gate_up, hidden, ops::CurrentIsa(), sums));
    RETURN_IF_ERROR(ops::Gemm(stream, {}, hidden, *weights.shared_down, {}, shared_));
    if (weights.shared_gate != nullptr) return ops::Gemm(stream, {}, x, *weights.shared_gate, {}, shared_gate_);
    shared_gate_ = TensorView();
    return absl::OkStatus();
  }

  absl::Status AddToResidual() {
    const pipeline::ChunkRange rows = layer_.rows();
    ops::CombineInputs terms;
    terms.weight = layer_.topk_weight.Rows(rows.begin, rows.count);
    if (shared_.rank() != 0) terms.shared = shared_.Rows(rows.begin, rows.count);
    if (shared_gate_.rank() != 0) terms.shared_gate = shared_gate_.Rows(rows.begin, rows.count);
    return exchange().FinishCombine(*context_, terms, residual_.Rows(rows.begin, rows.count));
  }

  // Each mode has its own, so that recorded addresses of one stay valid.
  std::vector<std::unique_ptr<TokenDispatcher>>& exchanges() {
    return exchanges_[static_cast<size_t>(context_->exchange)];
  }
  // The dispatcher of the present chunk.
  TokenDispatcher& exchange() {
    if (layer_.saved != nullptr) return layer_.saved->chunk(layer_.chunk).exchange;
    return *exchanges()[static_cast<size_t>(layer_.chunk)];
  }
  MoeScratch& scratch() {
    return context_ != nullptr && context_->scratch != nullptr ? *context_->scratch : own_scratch_;
  }
  HostDispatcher& host() { return *exchange().AsHost(); }

  const DispatcherMaker make_exchange_;
  // The state of the present Run; borrowed.
  const MoeContext* context_ = nullptr;
  LayerContext layer_;
  const MoeLayer* moe_ = nullptr;
  TensorView residual_;              // [T, H]
  TensorView shared_, shared_gate_;  // [T, H], [T, 1]; rank 0 = none

  TensorView all_residual_;          // [T, H] where residual_ is a part
  TensorView own_x_, own_topk_idx_;  // what the gate saw and chose

  LayerRouter router_;
  GroupRows groups_;
  RowScratch gathered_memory_, gathered_idx_memory_;
  std::vector<std::unique_ptr<TokenDispatcher>> exchanges_[2];  // [mode][chunks]
  WaveWeights wave_;
  ExpertAdapterProducts adapters_;
  std::vector<int32_t> later_;  // [E] RowsBehind
  HostCopy offsets_on_host_;
  MoeScratch own_scratch_;
  bool keeps_inputs_ = false, keeps_hidden_ = false;  // in what is saved, else in these
  bool wants_sums_ = false;                           // of experts, for backward
  double layer_seconds_ = 0;                          // of this layer, in routed experts and their waits
  RowScratch shared_memory_, shared_gate_memory_;
};

MoeExecutor::MoeExecutor(DispatcherMaker exchange) : impl_(std::make_unique<Impl>(exchange)) {}
MoeExecutor::~MoeExecutor() = default;

absl::Status MoeExecutor::Reserve(const MoeCapacity& room, const MoeLayerDesc& layer) {
  return impl_->Reserve(room, layer);
}

absl::Status MoeExecutor::Run(const MoeContext& context, const LayerContext& at, const MoeLayer& layer,
                              const TensorView& x, const TensorView& residual) {
  SY_CHECK(context.stream != nullptr && context.comm != nullptr && context.layout != nullptr &&
           context.schedule != nullptr && context.stats != nullptr);
  return impl_->Run(context, at, layer, x, residual);
}

const TensorView& MoeExecutor::topk_idx() const { return impl_->topk_idx(); }

}  // namespace switchyard::moe
