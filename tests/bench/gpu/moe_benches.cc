// MoE layers at real shapes: with the routing given (what the peers of peers.py compute), their expert products
// alone, and the whole layer with its router as a model runs it.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/bench/gpu/parts.h"
#include "tests/bench/gpu/routing.h"
#include "tests/bench/gpu/shapes.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/ops/exchange/combine.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

constexpr int kSets = 4;  // routings and rows; the experts are more than a cache holds
constexpr uint64_t kRowsKey = 1 << 20, kRouterKey = 1 << 21;

// One call's inputs and scratch.
struct Call {
  BenchRouting routing;
  Tensor x, residual;               // [T, H]
  Tensor idx, weight;               // [T, K]
  Tensor offsets, token, slot_row;  // ExpertOrder's
  Tensor hidden, y;                 // [T * K, F], [T * K, H]
};

class MoeBench {
 public:
  MoeBench(Bench* bench, MoeBenchShape shape) : bench_(*bench), shape_(std::move(shape)) {}

  absl::Status MakeWeights();
  absl::Status Run(int64_t tokens);

 private:
  absl::StatusOr<Call> MakeCall(int64_t tokens, int set) const;
  absl::Status RunGiven(const Call& call, const TensorView& residual) const;
  absl::Status RunExperts(const Call& call) const;
  absl::Status RunLayer(moe::MoeExecutor* executor, const Call& call, const TensorView& residual) const;
  absl::StatusOr<Timing> TimeLayer(const std::vector<Call>& calls, int64_t tokens);
  // ‖·‖ of sampled tokens of the set 0 against double precision.  weight_of(token) → [K].
  absl::Status Check(const char* what, int64_t tokens, const TensorView& residual, const TensorView& topk_idx,
                     absl::FunctionRef<std::vector<double>(int64_t token)> weight_of) const;
  std::vector<double> RoutedSum(const TensorView& x, const int32_t* experts, const std::vector<double>& weights) const;
  TensorView GateUpOf(int64_t expert) const { return bench_.Window(2 * expert, 2 * shape_.ffn, shape_.hidden); }
  TensorView DownOf(int64_t expert) const { return bench_.Window(2 * expert + 1, shape_.hidden, shape_.ffn); }

  Bench& bench_;
  const MoeBenchShape shape_;
  std::vector<ops::Weight> gate_up_, down_;
  ops::Weight router_;
  moe::MoeLayer layer_;
  moe::ExpertLayout layout_;
  const std::unique_ptr<comm::Communicator> comm_ = comm::MakeSoloCommunicator();
  const pipeline::MoeSchedule schedule_ = pipeline::BuildExpertParallel({});
};

absl::Status MoeBench::MakeWeights() {
  std::vector<const ops::Weight*> gate_up, down;
  gate_up_.resize(shape_.experts), down_.resize(shape_.experts);
  for (int64_t e = 0; e < shape_.experts; ++e) {
    ASSIGN_OR_RETURN(
        gate_up_[e],
        bench_.WeightOf(2 * e, {.n = 2 * shape_.ffn, .k = shape_.hidden, .layout = ops::WeightLayout::kGatedPanels}));
    ASSIGN_OR_RETURN(down_[e], bench_.WeightOf(2 * e + 1, {.n = shape_.hidden, .k = shape_.ffn}));
    gate_up.push_back(&gate_up_[e]);
    down.push_back(&down_[e]);
  }
  ASSIGN_OR_RETURN(router_, bench_.WeightOf(kRouterKey, {.n = shape_.experts, .k = shape_.hidden}));
  layer_.desc = {.hidden = shape_.hidden,
                 .expert_ffn = shape_.ffn,
                 .dtype = DType::kBf16,
                 .router = {.top_k = shape_.top_k, .renormalize = true}};
  layer_.weights.router = &router_;
  ASSIGN_OR_RETURN(layer_.weights.gate_up, ops::WeightTable::Make(bench_.stream(), std::move(gate_up)));
  ASSIGN_OR_RETURN(layer_.weights.down, ops::WeightTable::Make(bench_.stream(), std::move(down)));
  layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(shape_.experts), 1);
  return absl::OkStatus();
}

absl::StatusOr<Call> MoeBench::MakeCall(int64_t tokens, int set) const {
  const Device device = bench_.stream().device();
  const int64_t rows = tokens * shape_.top_k;
  Call call;
  call.routing = MakeRouting(tokens, shape_.experts, shape_.top_k, set);
  const TensorView idx(call.routing.idx.data(), DType::kI32, {tokens, shape_.top_k});
  const TensorView weight(call.routing.weight.data(), DType::kF32, {tokens, shape_.top_k});
  ASSIGN_OR_RETURN(call.x, bench_.OnDevice(kRowsKey + set, DType::kBf16, tokens, shape_.hidden));
  ASSIGN_OR_RETURN(call.idx, CopyToDevice(bench_.stream(), idx));
  ASSIGN_OR_RETURN(call.weight, CopyToDevice(bench_.stream(), weight));
  ASSIGN_OR_RETURN(call.residual, Tensor::Allocate(DType::kF32, {tokens, shape_.hidden}, device));
  RETURN_IF_ERROR(FillZero(bench_.stream(), call.residual));
  ASSIGN_OR_RETURN(call.offsets, Tensor::Allocate(DType::kI32, {shape_.experts + 1}, device));
  ASSIGN_OR_RETURN(call.token, Tensor::Allocate(DType::kI32, {rows}, device));
  ASSIGN_OR_RETURN(call.slot_row, Tensor::Allocate(DType::kI32, {rows}, device));
  ASSIGN_OR_RETURN(call.hidden, Tensor::Allocate(DType::kBf16, {rows, shape_.ffn}, device));
  ASSIGN_OR_RETURN(call.y, Tensor::Allocate(DType::kBf16, {rows, shape_.hidden}, device));
  RETURN_IF_ERROR(bench_.Poison(call.hidden));
  RETURN_IF_ERROR(bench_.Poison(call.y));
  return call;
}

absl::Status MoeBench::RunExperts(const Call& call) const {
  return ops::ExpertFfn(bench_.stream(),
                        {.gate_up = layer_.weights.gate_up.group(),
                         .down = layer_.weights.down.group(),
                         .offsets = IntView(call.offsets.view()),
                         .x_rows = IntView(call.token.view())},
                        call.x, call.hidden, call.y);
}

absl::Status MoeBench::RunGiven(const Call& call, const TensorView& residual) const {
  RETURN_IF_ERROR(ops::BuildExpertOrder(bench_.stream(), call.idx, shape_.experts,
                                        {.offsets = call.offsets, .token = call.token, .slot_row = call.slot_row}));
  RETURN_IF_ERROR(RunExperts(call));
  return ops::Combine(bench_.stream(), {.y = call.y, .slot_row = IntView(call.slot_row.view()), .weight = call.weight},
                      residual);
}

absl::Status MoeBench::RunLayer(moe::MoeExecutor* executor, const Call& call, const TensorView& residual) const {
  moe::MoeStats stats;
  const moe::MoeContext context = {
      .stream = &bench_.stream(), .comm = comm_.get(), .layout = &layout_, .schedule = &schedule_, .stats = &stats};
  return executor->Run(context, {}, layer_, call.x, residual);
}

std::vector<double> MoeBench::RoutedSum(const TensorView& x, const int32_t* experts,
                                        const std::vector<double>& weights) const {
  std::vector<double> row(shape_.hidden), sum(shape_.hidden, 0.0), hidden(shape_.ffn);
  for (int64_t h = 0; h < shape_.hidden; ++h) row[h] = ValueAt(x, 0, h);
  const auto dot = [](const TensorView& matrix, int64_t i, const std::vector<double>& with) {
    const Bf16* const from = matrix.row<Bf16>(i);
    double total = 0;
    for (size_t k = 0; k < with.size(); ++k) total += static_cast<double>(static_cast<float>(from[k])) * with[k];
    return total;
  };
  for (int64_t k = 0; k < shape_.top_k; ++k) {
    const TensorView gate_up = GateUpOf(experts[k]), down = DownOf(experts[k]);
    bench_.cpu().pool().Run(shape_.ffn, [&](int64_t f) {
      const double gate = dot(gate_up, f, row), up = dot(gate_up, shape_.ffn + f, row);
      hidden[f] = gate / (1 + std::exp(-gate)) * up;
    });
    bench_.cpu().pool().Run(shape_.hidden, [&](int64_t h) { sum[h] += weights[k] * dot(down, h, hidden); });
  }
  return sum;
}

absl::Status MoeBench::Check(const char* what, int64_t tokens, const TensorView& residual, const TensorView& topk_idx,
                             absl::FunctionRef<std::vector<double>(int64_t token)> weight_of) const {
  Tensor got, idx;
  ASSIGN_OR_RETURN(got, CopyToHost(bench_.stream(), residual));
  ASSIGN_OR_RETURN(idx, CopyToHost(bench_.stream(), topk_idx));
  const TensorView x = bench_.Window(kRowsKey, tokens, shape_.hidden);
  Difference difference;
  for (const int64_t t : SampledRows(tokens, 3)) {
    for (int64_t k = 0; k < shape_.top_k; ++k) {
      const int32_t expert = idx.data<int32_t>()[t * shape_.top_k + k];
      if (expert >= 0 && expert < shape_.experts) continue;
      return absl::InternalError(absl::StrCat(what, ": expert ", expert, " for token ", t));
    }
    const std::vector<double> want = RoutedSum(x.Rows(t, 1), idx.data<int32_t>() + t * shape_.top_k, weight_of(t));
    for (int64_t h = 0; h < shape_.hidden; ++h) difference.Add(ValueAt(got, t, h), want[h]);
  }
  return difference.Check(absl::StrCat(what, " ", shape_.model, " T=", tokens), kBf16Limit);
}

// Checks one call, then times.
absl::StatusOr<Timing> MoeBench::TimeLayer(const std::vector<Call>& calls, int64_t tokens) {
  moe::MoeExecutor executor;
  Tensor once;
  ASSIGN_OR_RETURN(once, Tensor::Allocate(DType::kF32, {tokens, shape_.hidden}, bench_.stream().device()));
  RETURN_IF_ERROR(FillZero(bench_.stream(), once));
  RETURN_IF_ERROR(RunLayer(&executor, calls[0], once));
  Tensor idx;
  ASSIGN_OR_RETURN(idx, CopyToHost(bench_.stream(), executor.topk_idx()));
  const auto weight_of = [&](int64_t t) {
    const TensorView x = bench_.Window(kRowsKey, tokens, shape_.hidden),
                     router = bench_.Window(kRouterKey, shape_.experts, shape_.hidden);
    std::vector<double> weights;
    double total = 0;
    for (int64_t k = 0; k < shape_.top_k; ++k) {
      double logit = 0;
      const int64_t expert = idx.data<int32_t>()[t * shape_.top_k + k];
      for (int64_t h = 0; h < shape_.hidden; ++h) logit += ValueAt(x, t, h) * ValueAt(router, expert, h);
      weights.push_back(std::exp(logit));
      total += weights.back();
    }
    for (double& weight : weights) weight /= total;
    return weights;
  };
  RETURN_IF_ERROR(Check("moe layer", tokens, once, executor.topk_idx(), weight_of));
  return bench_.Time(kSets, [&](int i) { return RunLayer(&executor, calls[i], calls[i].residual); });
}

absl::Status MoeBench::Run(int64_t tokens) {
  std::vector<Call> calls(kSets);
  double touched = 0;
  uint32_t checksum = 0;
  for (int i = 0; i < kSets; ++i) {
    ASSIGN_OR_RETURN(calls[i], MakeCall(tokens, i));
    touched += static_cast<double>(calls[i].routing.experts_touched) / kSets;
    checksum = checksum * 31 + calls[i].routing.checksum;
  }
  RETURN_IF_ERROR(RunGiven(calls[0], calls[0].residual));
  const std::vector<float>& weight = calls[0].routing.weight;
  RETURN_IF_ERROR(Check("moe", tokens, calls[0].residual, calls[0].idx, [&](int64_t t) {
    return std::vector<double>(weight.begin() + t * shape_.top_k, weight.begin() + (t + 1) * shape_.top_k);
  }));
  Timing given, experts, layer;
  ASSIGN_OR_RETURN(given, bench_.Time(kSets, [&](int i) { return RunGiven(calls[i], calls[i].residual); }));
  ASSIGN_OR_RETURN(experts, bench_.Time(kSets, [&](int i) { return RunExperts(calls[i]); }));
  ASSIGN_OR_RETURN(layer, TimeLayer(calls, tokens));
  const auto expert_elements = static_cast<double>(3 * shape_.ffn * shape_.hidden);
  bench_.Emit({{"kind", "moe"},
               {"model", shape_.model},
               {"tokens", tokens},
               {"routing", checksum},
               {"experts_touched", touched},
               {"bytes", 2 * touched * expert_elements + 10.0 * static_cast<double>(tokens * shape_.hidden)},
               {"flops", 2 * static_cast<double>(tokens * shape_.top_k) * expert_elements},
               {"expert_seconds", bench_.SecondsOrNull(experts.seconds)},
               {"layer_seconds", bench_.SecondsOrNull(layer.seconds)}},
              given);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchMoe(Bench* bench) {
  for (const MoeBenchShape& shape : MoeBenchShapes(bench->options().tiny)) {
    MoeBench layer(bench, shape);
    bool made = false;
    RETURN_IF_ERROR(bench->Measure(absl::StrCat("moe ", shape.model, " weights"), [&]() -> absl::Status {
      RETURN_IF_ERROR(layer.MakeWeights());
      made = true;
      return absl::OkStatus();
    }));
    if (!made) continue;
    for (const int64_t tokens : MoeBenchTokens(bench->options().tiny)) {
      RETURN_IF_ERROR(
          bench->Measure(absl::StrCat("moe ", shape.model, " T=", tokens), [&] { return layer.Run(tokens); }));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard
