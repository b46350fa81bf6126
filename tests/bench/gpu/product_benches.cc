// The two ceilings, and dense products at a model's shapes.
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/parts.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {
namespace {

struct ProductShape {
  std::string name;
  int64_t m = 0, n = 0, k = 0;
  ops::WeightFormat format = ops::WeightFormat::kPlain;

  ops::WeightDesc weight() const { return {.n = n, .k = k, .format = format}; }
};

absl::Status CheckProduct(const Bench& bench, const ProductShape& shape, const TensorView& x, const TensorView& rows,
                          const TensorView& y) {
  Tensor values;
  if (shape.format != ops::WeightFormat::kPlain) {
    values = Tensor(DType::kBf16, {shape.n, shape.k});
    ops::Weight packed;
    ASSIGN_OR_RETURN(packed, ops::PackWeight(bench.cpu(), shape.weight(), rows));
    RETURN_IF_ERROR(packed.UnpackRows(0, values));
  }
  const TensorView w = shape.format == ops::WeightFormat::kPlain ? rows : values;
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench.stream(), y));
  Difference difference;
  for (const int64_t i : SampledRows(shape.m, 4)) {
    for (const int64_t j : SampledRows(shape.n, 16)) {
      double want = 0;
      for (int64_t k = 0; k < shape.k; ++k) want += ValueAt(x, i, k) * ValueAt(w, j, k);
      difference.Add(ValueAt(got, i, j), want);
    }
  }
  return difference.Check(absl::StrCat("gemm ", shape.name), kBf16Limit);
}

absl::StatusOr<Timing> TimeProduct(Bench* bench, const ProductShape& shape) {
  const int sets = bench->Sets(2 * shape.m * (shape.k + shape.n) + ops::PackedBytes(shape.weight()));
  std::vector<Tensor> x(sets), y(sets);
  std::vector<ops::Weight> w(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(x[i], bench->OnDevice(2 * i, DType::kBf16, shape.m, shape.k));
    ASSIGN_OR_RETURN(w[i], bench->WeightOf(2 * i + 1, shape.weight()));
    ASSIGN_OR_RETURN(y[i], Tensor::Allocate(DType::kBf16, {shape.m, shape.n}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(y[i]));
  }
  Timing timing;
  ASSIGN_OR_RETURN(
      timing, bench->Time(sets, [&](int i) { return ops::Gemm(bench->stream(), {}, x[i], w[i], TensorView(), y[i]); }));
  for (const int i : {0, sets - 1}) {
    RETURN_IF_ERROR(CheckProduct(*bench, shape, bench->Window(2 * i, shape.m, shape.k),
                                 bench->Window(2 * i + 1, shape.n, shape.k), y[i]));
  }
  return timing;
}

absl::Status BenchCopy(Bench* bench) {
  const int64_t rows = bench->Pick(int64_t{1} << 17, 16), columns = bench->Pick(2048, 64);  // 512 MiB
  Tensor from, to;
  ASSIGN_OR_RETURN(from, bench->OnDevice(1, DType::kBf16, rows, columns));
  ASSIGN_OR_RETURN(to, Tensor::Allocate(DType::kBf16, {rows, columns}, bench->stream().device()));
  RETURN_IF_ERROR(bench->Poison(to));
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(1, [&](int) { return CopyTensor(bench->stream(), from, to); }));
  for (const int64_t row : SampledRows(rows, 8)) {
    Tensor got;
    ASSIGN_OR_RETURN(got, CopyToHost(bench->stream(), to.view().Rows(row, 1)));
    Difference difference;
    difference.AddRow(got, bench->Window(1, rows, columns).Rows(row, 1), 0);
    RETURN_IF_ERROR(difference.Check("copy", 0));
  }
  bench->Emit({{"kind", "copy"}, {"bytes", 2 * from.bytes()}}, timing);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchCeilings(Bench* bench) {
  RETURN_IF_ERROR(bench->Measure("copy", [&] { return BenchCopy(bench); }));
  return bench->Measure("gemm", [&]() -> absl::Status {
    const int64_t side = bench->Pick(8192, 64);
    Timing timing;
    ASSIGN_OR_RETURN(timing, TimeProduct(bench, {"ceiling", side, side, side}));
    bench->Emit({{"kind", "gemm"}, {"side", side}, {"flops", 2.0 * side * side * side}}, timing);
    return absl::OkStatus();
  });
}

absl::Status BenchProducts(Bench* bench) {
  const int64_t hidden = bench->Pick(2048, 64), qkv = bench->Pick(5120, 96), heads = bench->Pick(4096, 64),
                vocab = bench->Pick(151936, 160);
  for (const int64_t m : {bench->Pick(1, 1), bench->Pick(32, 3), bench->Pick(8192, 17)}) {
    std::vector<ProductShape> shapes = {{"qkv", m, qkv, hidden}, {"o", m, hidden, heads}};
    if (m <= 64) shapes.push_back({"lm_head", m, vocab, hidden});
    for (const ops::WeightFormat format :
         {ops::WeightFormat::kInt8, ops::WeightFormat::kInt4, ops::WeightFormat::kMxfp4, ops::WeightFormat::kQ6_K}) {
      shapes.push_back({absl::StrCat("qkv ", ops::WeightFormatName(format)), m, qkv, hidden, format});
    }
    for (const ProductShape& shape : shapes) {
      RETURN_IF_ERROR(bench->Measure(absl::StrCat("gemm ", shape.name, " M=", m), [&]() -> absl::Status {
        Timing timing;
        ASSIGN_OR_RETURN(timing, TimeProduct(bench, shape));
        bench->Emit({{"kind", "op"},
                     {"op", absl::StrCat("gemm ", shape.name)},
                     {"shape", absl::StrCat("M=", m, " N=", shape.n, " K=", shape.k)},
                     {"bytes", 2.0 * m * (shape.k + shape.n) + ops::PackedBytes(shape.weight())},
                     {"flops", 2.0 * m * shape.n * shape.k}},
                    timing);
        return absl::OkStatus();
      }));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard
