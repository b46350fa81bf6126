// How long the backward of a MoE layer takes beside its forward, on one rank: a backward has twice a forward's
// products.
//
//   moe_backward_bench [--threads=N] [--rounds=N]
//
// In every round a forward, one that saves and a backward run, one after the other; medians over rounds are printed.
#include <cstdio>
#include <deque>
#include <vector>

#include "scheduler/pipeline/build_expert_parallel.h"
#include "tests/bench/op_bench.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/ops/core/isa.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

struct Case {
  DType dtype;
  int64_t rows, hidden, ffn;
  int experts, top_k;
};

// A layer with its transposes and gradients.
class Trained {
 public:
  Trained(const Stream& stream, const Case& c) : stream_(stream), dtype_(c.dtype) {
    layer.desc = {.hidden = c.hidden, .expert_ffn = c.ffn, .dtype = c.dtype, .router = {.top_k = c.top_k}};
    layer.weights.router = Add(c.experts, c.hidden, ops::WeightLayout::kPanels, &weights.router);
    std::vector<const ops::Weight*> gate_up, down;
    experts_.resize(static_cast<size_t>(c.experts));
    for (ops::FfnGradients& expert : experts_) {
      gate_up.push_back(Add(2 * c.ffn, c.hidden, ops::WeightLayout::kGatedPanels, &expert.gate_up));
      down.push_back(Add(c.hidden, c.ffn, ops::WeightLayout::kPanels, &expert.down));
    }
    layer.weights.gate_up = *ops::WeightTable::Make(stream, std::move(gate_up));
    layer.weights.down = *ops::WeightTable::Make(stream, std::move(down));
    weights.experts = experts_;
  }
  Tensor Filled(DType dtype, int64_t rows, int64_t columns) {
    Tensor t(dtype, {rows, columns});
    VisitDType(dtype, [&]<class Elem>() {
      for (int64_t i = 0; i < rows * columns; ++i) {
        state_ = state_ * 1664525u + 1013904223u;
        t.data<Elem>()[i] = Elem((static_cast<float>(state_ >> 8) / 8388608.0f - 1.0f) / 16);
      }
    });
    return t;
  }

  moe::MoeLayer layer;
  moe::MoeBackwardWeights weights;

 private:
  const ops::Weight* Add(int64_t n, int64_t k, ops::WeightLayout layout, ops::TrainedMatrix* trained) {
    const Tensor rows = Filled(dtype_, n, k);
    weights_.push_back(*ops::PackWeight(stream_, {.n = n, .k = k, .dtype = dtype_, .layout = layout}, rows));
    transposed_.emplace_back(ops::WeightDesc{.n = k, .k = n, .dtype = dtype_});
    SY_CHECK_OK(ops::PackTransposed(stream_, rows, &transposed_.back()));
    gradients_.push_back(Tensor::Zeros(AccDType(dtype_), {n, k}));
    *trained = {.transposed = &transposed_.back(), .gradient = gradients_.back()};
    return &weights_.back();
  }

  const Stream stream_;
  const DType dtype_;
  uint32_t state_ = 1;
  std::deque<ops::Weight> weights_, transposed_;
  std::deque<Tensor> gradients_;
  std::vector<ops::FfnGradients> experts_;
};

void Compare(const Stream& stream, const Case& c, int rounds) {
  Trained trained(stream, c);
  const DType acc = AccDType(c.dtype);
  const Tensor x = trained.Filled(c.dtype, c.rows, c.hidden), dy = trained.Filled(acc, c.rows, c.hidden);
  const Tensor residual = Tensor::Zeros(acc, {c.rows, c.hidden}), d_x(c.dtype, {c.rows, c.hidden});
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(c.experts, 1);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.trains = true});
  const auto comm = std::move(comm::MakeLocalGroup(1)[0]);
  moe::MoeSaved saved;
  moe::MoeStats stats;
  const moe::MoeContext step = {
      .stream = &stream, .comm = comm.get(), .layout = &layout, .schedule = &schedule, .stats = &stats};
  const moe::LayerContext keeps = {.saved = &saved};
  moe::MoeExecutor executor;
  moe::MoeBackward backward;
  std::vector<double> plain, saving, back;
  for (int round = 0; round < rounds; ++round) {
    plain.push_back(SecondsOf([&] { SY_CHECK_OK(executor.Run(step, {}, trained.layer, x, residual)); }));
    saving.push_back(SecondsOf([&] { SY_CHECK_OK(executor.Run(step, keeps, trained.layer, x, residual)); }));
    back.push_back(SecondsOf([&] {
      SY_CHECK_OK(backward.Run(step, keeps, trained.layer, trained.weights,
                               {.x = x, .d_residual = dy, .router_loss = {}, .d_x = d_x}));
    }));
  }
  const double flops = 6.0 * static_cast<double>(c.rows * c.top_k * c.hidden * c.ffn);
  std::printf(
      "%-5s T=%-5ld H=%-5ld F=%-5ld E=%-3d K=%d  forward %8.2f ms %6.0f GFLOP/s  saving %8.2f ms  "
      "backward %8.2f ms %6.0f GFLOP/s  over forward %.2f\n",
      DTypeName(c.dtype), static_cast<long>(c.rows), static_cast<long>(c.hidden), static_cast<long>(c.ffn), c.experts,
      c.top_k, Median(plain) * 1e3, flops / Median(plain) * 1e-9, Median(saving) * 1e3, Median(back) * 1e3,
      2 * flops / Median(back) * 1e-9, Median(back) / Median(plain));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::optional<OpBenchFlags> flags = ParseOpBenchFlags("moe_backward_bench", argc, argv);
  if (!flags.has_value()) return 2;
  ThreadPool pool(flags->threads);
  const Stream stream = Stream::OnCpu(&pool);
  std::printf("%s, %d threads\n", ops::IsaName(ops::CurrentIsa()), flags->threads);
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    Compare(stream, {dtype, 2048, 192, 96, 16, 2}, flags->rounds);  // as deploy/demo-model
    Compare(stream, {dtype, 2048, 512, 512, 8, 2}, flags->rounds);
    Compare(stream, {dtype, 2048, 1024, 1024, 8, 2}, flags->rounds);
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
