// How fast the gradient of a weight is beside the product that made it: the same M, n, k and so the same flops.
//
//   weight_gradient_bench [--threads=N] [--rounds=N]
//
// Both run in every round, one after the other; medians over rounds of GFLOP/s and of their ratio are printed.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/bench/op_bench.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/ops/gemm/backward/weight_gradient.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

struct Case {
  DType dtype;
  int64_t m, n, k;
};

void Compare(const Stream& stream, const Case& c, int rounds) {
  const Tensor x = Filled(c.dtype, c.m, c.k), dy = Filled(c.dtype, c.m, c.n), rows = Filled(c.dtype, c.n, c.k);
  const Tensor y(c.dtype, {c.m, c.n}), gradient = Tensor::Zeros(AccDType(c.dtype), {c.n, c.k});
  const ops::Weight w = *ops::PackWeight(stream, {.n = c.n, .k = c.k, .dtype = c.dtype}, rows);
  ops::Weight transposed({.n = c.k, .k = c.n, .dtype = c.dtype});
  const double flops = 2.0 * c.m * c.n * c.k;
  const int passes = static_cast<int>(std::max(1.0, 4e9 / flops));
  std::vector<double> forward, backward, ratio, pack;
  for (int round = 0; round < rounds; ++round) {
    const double there = SecondsOf([&] {
      for (int i = 0; i < passes; ++i) SY_CHECK_OK(ops::Gemm(stream, {}, x, w, TensorView(), y));
    });
    const double back = SecondsOf([&] {
      for (int i = 0; i < passes; ++i) SY_CHECK_OK(ops::WeightGradient(stream, dy, x, gradient));
    });
    pack.push_back(SecondsOf([&] { SY_CHECK_OK(ops::PackTransposed(stream, gradient, &transposed)); }));
    forward.push_back(passes * flops / there * 1e-9);
    backward.push_back(passes * flops / back * 1e-9);
    ratio.push_back(there / back);
  }
  std::printf("%-5s M=%-5ld n=%-5ld k=%-5ld forward %6.0f GFLOP/s  gradient %6.0f GFLOP/s  ratio %.2f  pack %.3f ms\n",
              DTypeName(c.dtype), static_cast<long>(c.m), static_cast<long>(c.n), static_cast<long>(c.k),
              Median(forward), Median(backward), Median(ratio), Median(pack) * 1e3);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::optional<OpBenchFlags> flags = ParseOpBenchFlags("weight_gradient_bench", argc, argv);
  if (!flags.has_value()) return 2;
  ThreadPool pool(flags->threads);
  const Stream stream = Stream::OnCpu(&pool);
  std::printf("%s, %d threads\n", ops::IsaName(ops::CurrentIsa()), flags->threads);
  for (DType dtype : {DType::kBf16, DType::kF32}) {
    for (int64_t m : {512, 2048, 4096}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{192, 192}, {512, 512}, {1024, 512}, {2048, 2048}}) {
        Compare(stream, {dtype, m, n, k}, flags->rounds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
