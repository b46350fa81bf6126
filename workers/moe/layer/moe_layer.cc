#include "workers/moe/layer/moe_layer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/dispatch/exchange.h"
#include "workers/moe/experts/wave_weights.h"
#include "workers/moe/layer/moe_checks.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/moe/layer/schedule_executor.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/copy.h"

namespace switchyard {
class MoeExecutor::Impl : public MicroOpRunner {
 public:
  explicit Impl(ExchangeMaker make_exchange) : make_exchange_(make_exchange) {}

  absl::Status Run(const MoeStep& step, const MoeLayer& layer, const TensorView& x, const TensorView& residual) {
    step_ = &step;
    layer_ = &layer;
    x_ = x;
    residual_ = residual;
    stats_ = step.stats != nullptr ? step.stats : &unread_stats_;
    if (step.saved != nullptr) step.saved->num_chunks = 0;
    const absl::Status status = CheckAndRun();
    if (!status.ok()) {
      // The others wait for this rank's rows: end it for them, too.
      if (step.comm->world() > 1) step.comm->Abort(status.message());
      for (auto& exchange : exchanges()) exchange->Drop();
      if (step.saved != nullptr) {
        for (auto& chunk : step.saved->chunks) chunk->exchange.Drop();
      }
    }
    unread_stats_.Clear();
    return status;
  }

  absl::Status Reserve(const MoeRoom& room, const MoeLayerDesc& layer) {
    const Device device = room.stream->device();
    auto& exchanges = exchanges_[static_cast<size_t>(room.exchange)];
    if (exchanges.empty()) exchanges.push_back(make_exchange_(device, room.exchange));
    RETURN_IF_ERROR(exchanges[0]->Reserve({.stream = room.stream,
                                           .layout = room.layout,
                                           .rank = room.rank,
                                           .rows = room.rows,
                                           .top_k = layer.router.top_k,
                                           .hidden = layer.hidden,
                                           .dtype = layer.dtype,
                                           .split = room.brought}));
    RETURN_IF_ERROR(TakeChoices(layer, room.rows, room.layout->num_experts(), device, &gate_memory_));
    if (room.brought) {
      RETURN_IF_ERROR(wave_.Reserve(device, static_cast<int64_t>(room.layout->Residents(room.rank).size())));
    }
    RETURN_IF_ERROR(hidden_memory_.Take(exchanges[0]->y().dim(0), layer.expert_ffn, layer.dtype, device).status());
    return layer.shared_ffn > 0 ? TakeShared(layer, room.rows, device, nullptr).status() : absl::OkStatus();
  }

  absl::Status Start(const MicroOp& op) override {
    switch (op.kind) {
      case MicroOpKind::kSplit:
        return absl::OkStatus();  // ranges are a function of (rows, chunk): RowsOfChunk
      case MicroOpKind::kGate:
        RETURN_IF_ERROR(Gate(RangeOf(op)));
        RETURN_IF_ERROR(DropChoices(op));
        return AfterGate(op);
      case MicroOpKind::kDispatch: {
        const ChunkRange range = RangeOf(op);
        context_.chunk = op.chunk;
        return exchange(op.chunk).StartDispatch(context_, topk_idx_.Rows(range.begin, range.count),
                                                x_.Rows(range.begin, range.count), range.begin);
      }
      case MicroOpKind::kExpert:
        return op.experts == ExpertSet::kShared ? SharedExpert() : RoutedExperts(op);
      case MicroOpKind::kCombine:
        context_.chunk = op.chunk;
        return exchange(op.chunk).StartCombine(context_);
      default:
        return absl::UnimplementedError(absl::StrCat("moe_layer: op ", MicroOpKindName(op.kind), " of schedule ",
                                                     step_->schedule->name, " has no executor yet"));
    }
  }

  absl::Status Finish(const MicroOp& op) override {
    context_.chunk = op.chunk;  // rows may go out once their counts are there
    if (op.kind == MicroOpKind::kDispatch) return exchange(op.chunk).FinishDispatch(context_);
    SY_CHECK(op.kind == MicroOpKind::kCombine);
    const ChunkRange range = RangeOf(op);
    CombineTerms terms;
    terms.topk_weight = topk_weight_.Rows(range.begin, range.count);
    if (shared_.rank() != 0) terms.shared = shared_.Rows(range.begin, range.count);
    if (shared_gate_.rank() != 0) terms.shared_gate = shared_gate_.Rows(range.begin, range.count);
    return exchange(op.chunk).FinishCombine(context_, terms, residual_.Rows(range.begin, range.count));
  }

  const TensorView& topk_idx() const { return topk_idx_; }

 private:
  ChunkRange RangeOf(const MicroOp& op) const { return RowsOfChunk(x_.dim(0), op.chunk, op.num_chunks); }

  absl::Status CheckAndRun() {
    SY_CHECK_EQ(step_->layout->num_ranks(), step_->comm->world());
    const MoeLayerDesc& desc = layer_->desc;
    const int64_t rows = x_.rank() == 2 ? x_.dim(0) : 0;
    RETURN_IF_ERROR(CheckRows(desc, x_, residual_));
    RETURN_IF_ERROR(CheckLayer(*step_, *layer_));
    RETURN_IF_ERROR(CheckSchedule(*step_->schedule, *layer_));
    RETURN_IF_ERROR(CheckSaved(*step_, *layer_));
    context_ = {.stream = step_->stream,
                .comm = step_->comm,
                .layout = step_->layout,
                .deadline = step_->deadline,
                .stats = stats_,
                .mode = step_->exchange,
                .max_rows = RowsOfChunk(step_->max_rows, 0, step_->schedule->num_chunks).count,
                .moe_layer = step_->moe_layer};
    estimates_ = {};
    TakeExchanges();
    MoeSaved* const saved = step_->saved;
    RETURN_IF_ERROR(TakeChoices(desc, rows, step_->layout->num_experts(), step_->stream->device(),
                                saved != nullptr ? &saved->gate_memory : &gate_memory_));
    shared_ = TensorView();
    shared_gate_ = TensorView();
    const int64_t rows_before = stats_->expert_rows;
    RETURN_IF_ERROR(RunSchedule(*step_->schedule, this, step_->watch));
    if (saved != nullptr) Save(saved);
    stats_->CountLayer(step_->moe_layer, stats_->expert_rows - rows_before);
    return rows == 0 ? absl::OkStatus() : CountChoices();
  }

  // As many as the schedule has chunks.
  void TakeExchanges() {
    for (int i = 0; i < step_->schedule->num_chunks; ++i) {
      const auto chunk = static_cast<size_t>(i);
      if (step_->saved == nullptr) {
        if (exchanges().size() == chunk)
          exchanges().push_back(make_exchange_(step_->stream->device(), step_->exchange));
        continue;
      }
      if (lent_outputs_.size() == chunk) lent_outputs_.push_back(std::make_unique<RowScratch>());
      step_->saved->chunk(i).exchange.LendOutputs(lent_outputs_[chunk].get());
    }
  }

  // What is not there already.
  void Save(MoeSaved* saved) const {
    saved->num_chunks = step_->schedule->num_chunks;
    saved->topk_idx = chosen_;
    saved->topk_weight = topk_weight_;
    saved->logits = logits_;
    saved->shared_gate = shared_gate_;
    if (layer_->desc.shared_ffn == 0) saved->shared_sums = saved->shared_hidden = TensorView();
  }

  absl::Status TakeChoices(const MoeLayerDesc& desc, int64_t rows, int64_t experts, Device device, GateMemory* memory) {
    const DType acc = AccDType(desc.dtype);
    ASSIGN_OR_RETURN(topk_idx_, memory->topk_idx.Take(rows, desc.router.top_k, DType::kI32, device));
    chosen_ = topk_idx_;
    ASSIGN_OR_RETURN(topk_weight_, memory->topk_weight.Take(rows, desc.router.top_k, acc, device));
    ASSIGN_OR_RETURN(logits_, memory->logits.Take(rows, experts, acc, device));
    return absl::OkStatus();
  }

  // Also sets shared_ and shared_gate_.  Returns the shared expert's hidden rows.
  absl::StatusOr<TensorView> TakeShared(const MoeLayerDesc& desc, int64_t rows, Device device, MoeSaved* saved) {
    ASSIGN_OR_RETURN(shared_, shared_memory_.Take(rows, desc.hidden, desc.dtype, device));
    RowScratch& gate_memory = saved != nullptr ? saved->shared_gate_memory : shared_gate_memory_;
    ASSIGN_OR_RETURN(shared_gate_, gate_memory.Take(rows, 1, AccDType(desc.dtype), device));
    RowScratch& memory = saved != nullptr ? saved->shared_hidden_memory : hidden_memory_;
    return memory.Take(rows, desc.shared_ffn, desc.dtype, device);
  }

  absl::Status CountChoices() {
    if (step_->expert_counts.rank() != 0) {
      RETURN_IF_ERROR(CountExperts(*step_->stream, topk_idx_, step_->expert_counts));
    }
    if (step_->decode_counts.rank() == 0) return absl::OkStatus();
    return CountExperts(*step_->stream, topk_idx_.Rows(0, step_->num_decode_rows), step_->decode_counts);
  }

  absl::Status Gate(const ChunkRange& range) {
    const TensorView logits = logits_.Rows(range.begin, range.count);
    RETURN_IF_ERROR(Gemm(*step_->stream, {}, x_.Rows(range.begin, range.count), *layer_->weights.router, {}, logits));
    RouterDesc desc = layer_->desc.router;
    desc.num_rows = step_->num_rows;
    desc.bias = layer_->weights.router_bias;
    return RouteTopK(*step_->stream, desc, logits, topk_idx_.Rows(range.begin, range.count),
                     topk_weight_.Rows(range.begin, range.count));
  }

  absl::Status DropChoices(const MicroOp& gate) {
    if (step_->capacity.rows == 0) return absl::OkStatus();
    if (gate.num_chunks != 1 || !topk_idx_.device().is_cpu()) {
      return absl::UnimplementedError("moe_layer: a capacity wants all rows gated at once, on the CPU");
    }
    RowScratch& memory = (step_->saved != nullptr ? step_->saved->gate_memory : gate_memory_).kept_idx;
    topk_idx_ = memory.Rows(chosen_.dim(0), chosen_.dim(1), DType::kI32);
    RETURN_IF_ERROR(CopyTensor(*step_->stream, chosen_, topk_idx_));
    const Timed timed(&stats_->exchange_seconds);
    int64_t dropped = 0;
    ASSIGN_OR_RETURN(dropped, capacity_gate_.Drop(step_->capacity,
                                                  {.deadline = step_->deadline,
                                                   .tag = CallTag(CallUse::kCapacityCounts, step_->moe_layer)},
                                                  step_->layout->num_experts(), topk_idx_, topk_weight_));
    stats_->dropped_rows += dropped;
    return absl::OkStatus();
  }

  // What coming layers will get, and where the rows go that were just gated.
  absl::Status AfterGate(const MicroOp& gate) {
    if (step_->forecaster == nullptr && step_->placer == nullptr) return absl::OkStatus();
    if (gate.num_chunks != 1) {
      if (step_->placer == nullptr) return absl::OkStatus();
      return absl::UnimplementedError("moe_layer: a placer wants all rows gated at once");
    }
    GatedRows rows = {.stream = step_->stream,
                      .comm = step_->comm,
                      .deadline = step_->deadline,
                      .stats = stats_,
                      .moe_layer = step_->moe_layer,
                      .topk_idx = topk_idx_,
                      .x = x_,
                      .logits = logits_};
    ASSIGN_OR_RETURN(rows.topk_idx, OnHost(topk_idx_, &choices_on_host_));
    if (step_->forecaster != nullptr) {
      const absl::StatusOr<absl::Span<const LayerEstimate>> told = step_->forecaster->OnGate(rows);
      RETURN_IF_ERROR(step_->comm->status());  // says more than that the stream was freed
      RETURN_IF_ERROR(told.status());
      rows.estimates = estimates_ = *told;
    }
    return step_->placer == nullptr ? absl::OkStatus() : Place(rows);
  }

  absl::Status Place(const GatedRows& rows) {
    LayerPlacement placement;
    ASSIGN_OR_RETURN(placement, step_->placer->Place(rows));
    SY_CHECK_EQ(placement.layout->num_ranks(), step_->comm->world());
    RETURN_IF_ERROR(CheckExperts(*placement.layout, step_->comm->rank(), layer_->weights));
    context_.layout = placement.layout;
    estimates_ = placement.estimates;
    if (placement.split == nullptr) return absl::OkStatus();
    context_.split = &split_.emplace(placement.split, step_->comm->rank());
    context_.gated = topk_idx_;
    return absl::OkStatus();
  }

  // [E] of this rank's rows behind those of the range; empty where the host would have to wait for them.
  absl::Span<const int32_t> RowsBehind(const ChunkRange& range) {
    later_.clear();
    if (!topk_idx_.device().is_cpu() || range.begin + range.count == x_.dim(0)) return later_;
    later_.resize(static_cast<size_t>(step_->layout->num_experts()));
    const int64_t top_k = topk_idx_.dim(1);
    const int32_t* const chosen = topk_idx_.data<int32_t>();
    for (int64_t i = (range.begin + range.count) * top_k; i < topk_idx_.dim(0) * top_k; ++i) {
      if (chosen[i] >= 0) ++later_[static_cast<size_t>(chosen[i])];
    }
    return later_;
  }

  absl::Status RoutedExperts(const MicroOp& op) {
    RowExchange* const exchange = &this->exchange(op.chunk);
    MoeSaved::Chunk* const saved = step_->saved != nullptr ? &step_->saved->chunk(op.chunk) : nullptr;
    const TensorView& y = exchange->y();
    RowScratch& memory = saved != nullptr ? saved->hidden_memory : hidden_memory_;
    ASSIGN_OR_RETURN(const TensorView hidden,
                     memory.Take(y.dim(0), layer_->desc.expert_ffn, layer_->desc.dtype, y.device()));
    if (saved != nullptr) {
      saved->hidden = hidden;
      saved->sums =
          saved->sums_memory.Rows(hidden.dim(0), SumsWidth(layer_->desc.activation, hidden.dim(1)), hidden.dtype());
    }
    ExpertFfnDesc desc = {.activation = layer_->desc.activation,
                          .gate_up = layer_->weights.gate_up.group(),
                          .down = layer_->weights.down.group(),
                          .offsets = exchange->offsets(),
                          .x_rows = exchange->x_rows(),
                          .sums = saved != nullptr ? saved->sums : TensorView(),
                          .up_biases = layer_->weights.up_biases,
                          .down_biases = layer_->weights.down_biases};
    const auto compute = [&] {
      const Timed timed(&stats_->expert_seconds);
      return ExpertFfn(*step_->stream, desc, exchange->x(), hidden, y);
    };
    if (layer_->weights.experts == nullptr) return compute();
    desc.partial = true;
    ASSIGN_OR_RETURN(const absl::Span<const int32_t> offsets, OffsetsOnHost(exchange->offsets()));
    const absl::Span<const int32_t> residents = context_.layout->Residents(step_->comm->rank());
    RETURN_IF_ERROR(wave_.Reserve(step_->stream->device(), static_cast<int64_t>(residents.size())));
    const LayerExperts::Call call = {.layer = step_->moe_layer,
                                     .micro_batch = op.chunk,
                                     .num_micro_batches = op.num_chunks,
                                     .experts = residents,
                                     .offsets = offsets,
                                     .estimates = estimates_,
                                     .later = RowsBehind(RangeOf(op)),
                                     .stream = step_->stream,
                                     .deadline = step_->deadline,
                                     .x = exchange->x(),
                                     .x_rows = exchange->x_rows(),
                                     .y = y};
    return layer_->weights.experts->RunLayer(
        call, [&](const WeightGroup& gate_up, const WeightGroup& down) -> absl::Status {
          ASSIGN_OR_RETURN(const WaveWeights::Groups groups, wave_.Send(*step_->stream, gate_up, down));
          desc.gate_up = groups.gate_up;
          desc.down = groups.down;
          return compute();
        });
  }

  // On a device the host waits for them.
  absl::StatusOr<absl::Span<const int32_t>> OffsetsOnHost(const IntView& offsets) {
    const TensorView numbers(const_cast<int32_t*>(offsets.data()), DType::kI32, {offsets.size()}, offsets.device());
    ASSIGN_OR_RETURN(const TensorView on_host, OnHost(numbers, &offsets_on_host_));
    return absl::MakeConstSpan(on_host.data<int32_t>(), static_cast<size_t>(on_host.NumElements()));
  }

  absl::StatusOr<TensorView> OnHost(const TensorView& numbers, HostCopy* place) {
    absl::StatusOr<TensorView> on_host = place->Take(*step_->stream, numbers, step_->deadline);
    RETURN_IF_ERROR(step_->comm->status());  // says more than that the stream was freed
    return on_host;
  }

  absl::Status SharedExpert() {
    const absl::Time begin = absl::Now();
    const MoeLayerDesc& desc = layer_->desc;
    const MoeLayerWeights& weights = layer_->weights;
    ASSIGN_OR_RETURN(const TensorView hidden, TakeShared(desc, x_.dim(0), step_->stream->device(), step_->saved));
    TensorView sums;
    if (step_->saved != nullptr) {
      sums = step_->saved->shared_sums_memory.Rows(hidden.dim(0), 2 * hidden.dim(1), hidden.dtype());
      step_->saved->shared_hidden = hidden;
      step_->saved->shared_sums = sums;
    }
    RETURN_IF_ERROR(GatedGemm(*step_->stream, x_, *weights.shared_gate_up, hidden, CurrentIsa(), sums));
    RETURN_IF_ERROR(Gemm(*step_->stream, {}, hidden, *weights.shared_down, {}, shared_));
    if (weights.shared_gate == nullptr) {
      shared_gate_ = TensorView();
    } else {
      RETURN_IF_ERROR(Gemm(*step_->stream, {}, x_, *weights.shared_gate, {}, shared_gate_));
    }
    stats_->expert_seconds += absl::ToDoubleSeconds(absl::Now() - begin);
    return absl::OkStatus();
  }

  // Each mode has its own, so that what a graph has recorded of one stays where it is.
  std::vector<std::unique_ptr<RowExchange>>& exchanges() { return exchanges_[static_cast<size_t>(step_->exchange)]; }
  RowExchange& exchange(int chunk) {
    if (step_->saved != nullptr) return step_->saved->chunk(chunk).exchange;
    return *exchanges()[static_cast<size_t>(chunk)];
  }

  const ExchangeMaker make_exchange_;
  // Of the present Run; borrowed.
  const MoeStep* step_ = nullptr;
  const MoeLayer* layer_ = nullptr;
  MoeStats* stats_ = nullptr;
  MoeStats unread_stats_;  // where statistics go that nobody asked for
  ExchangeContext context_;
  std::optional<SplitCursor> split_;            // of a placer's table
  absl::Span<const LayerEstimate> estimates_;   // the forecaster's, or what the placer makes of all ranks'
  TensorView x_, residual_;                     // [T, H]
  TensorView topk_idx_, topk_weight_, logits_;  // [T, K], [T, K], [T, E]
  TensorView chosen_;                           // topk_idx_ before anything was dropped
  TensorView shared_, shared_gate_;             // [T, H], [T, 1]; rank 0 = none

  std::vector<std::unique_ptr<RowExchange>> exchanges_[2];  // [mode][chunks]
  WaveWeights wave_;
  std::vector<int32_t> later_;  // [E] RowsBehind
  HostCopy choices_on_host_, offsets_on_host_;
  std::vector<std::unique_ptr<RowScratch>> lent_outputs_;  // [chunks] to what is saved
  GateMemory gate_memory_;
  CapacityGate capacity_gate_;
  RowScratch hidden_memory_, shared_memory_, shared_gate_memory_;
};

MoeExecutor::MoeExecutor(ExchangeMaker exchange) : impl_(std::make_unique<Impl>(exchange)) {}
MoeExecutor::~MoeExecutor() = default;

absl::Status MoeExecutor::Reserve(const MoeRoom& room, const MoeLayerDesc& layer) {
  return impl_->Reserve(room, layer);
}

absl::Status MoeExecutor::Run(const MoeStep& step, const MoeLayer& layer, const TensorView& x,
                              const TensorView& residual) {
  SY_CHECK(step.stream != nullptr && step.comm != nullptr && step.layout != nullptr && step.schedule != nullptr);
  return impl_->Run(step, layer, x, residual);
}

const TensorView& MoeExecutor::topk_idx() const { return impl_->topk_idx(); }

}  // namespace switchyard
