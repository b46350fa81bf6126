// The ops that move or change elements one by one, at Qwen3-30B-A3B's widths; against the same op on the CPU, exactly.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/op_lines.h"
#include "tests/bench/gpu/parts.h"
#include "tests/bench/gpu/routing.h"
#include "workers/ops/activation/clamp.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/sampling/device_sampling.h"

namespace switchyard {
namespace {

constexpr DType kModel = DType::kBf16;

absl::Status BenchClamp(Bench* bench, int64_t rows) {
  constexpr double kLimit = 0.125;  // of numbers within ±1/4
  const int64_t width = bench->Pick(5120, 72);
  const int sets = bench->Sets(rows * width * 2);
  std::vector<Tensor> x(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(x[i], bench->OnDevice(i, kModel, rows, width));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) { return ops::Clamp(bench->stream(), kLimit, x[i]); }));
  const Tensor want = bench->OnHost(0, kModel, rows, width);
  RETURN_IF_ERROR(ops::Clamp(bench->cpu(), kLimit, want));
  RETURN_IF_ERROR(CheckBytes(*bench, "clamp", x[0], want));
  bench->Emit(OpLine("clamp", absl::StrCat("T=", rows, " H=", width), 4.0 * rows * width), timing);
  return absl::OkStatus();
}

absl::Status BenchGather(Bench* bench, int64_t rows) {
  const int64_t width = bench->Pick(2048, 64), top_k = bench->Pick(8, 2), n = rows * top_k;
  const int sets = bench->Sets(n * width * 4);
  std::vector<int32_t> from;
  for (int64_t i = 0; i < n; ++i) from.push_back(static_cast<int32_t>(i * 7919 % rows));
  Tensor index;
  ASSIGN_OR_RETURN(index, IntsOnDevice(*bench, from, {n}));
  std::vector<Tensor> x(sets), y(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(x[i], bench->OnDevice(i, kModel, rows, width));
    ASSIGN_OR_RETURN(y[i], Tensor::Allocate(kModel, {n, width}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(y[i]));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::GatherRows(bench->stream(), x[i], IntView(index.view()), y[i]);
  }));
  const Tensor want(kModel, {n, width});
  RETURN_IF_ERROR(ops::GatherRows(bench->cpu(), bench->OnHost(0, kModel, rows, width), IntView(from), want));
  RETURN_IF_ERROR(CheckBytes(*bench, "gather", y[0], want));
  bench->Emit(OpLine("gather", absl::StrCat("T=", rows, " K=", top_k, " H=", width), 4.0 * n * width), timing);
  return absl::OkStatus();
}

absl::Status BenchCounts(Bench* bench, int64_t rows) {
  const int64_t experts = bench->Pick(128, 8), top_k = bench->Pick(8, 2);
  const BenchRouting routing = MakeRouting(rows, experts, top_k, 0);
  Tensor idx, counts;
  ASSIGN_OR_RETURN(idx, IntsOnDevice(*bench, routing.idx, {rows, top_k}));
  ASSIGN_OR_RETURN(counts, IntsOnDevice(*bench, std::vector<int32_t>(experts), {experts}));
  RETURN_IF_ERROR(ops::CountExperts(bench->stream(), idx, counts));
  std::vector<int32_t> want(experts);
  for (const int32_t expert : routing.idx) ++want[expert];
  RETURN_IF_ERROR(CheckInts(*bench, "count experts", counts, want));
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(1, [&](int) { return ops::CountExperts(bench->stream(), idx, counts); }));
  bench->Emit(OpLine("count experts", absl::StrCat("T=", rows, " E=", experts, " K=", top_k), 4.0 * rows * top_k),
              timing);
  return absl::OkStatus();
}

absl::Status BenchResolve(Bench* bench, int64_t rows) {
  std::vector<int32_t> planned, last, want;
  for (int64_t i = 0; i < rows; ++i) {
    last.push_back(static_cast<int32_t>(1000 + i));
    planned.push_back(static_cast<int32_t>(i % 2 == 0 ? 7 * i : -1 - (rows - 1 - i)));
    want.push_back(static_cast<int32_t>(i % 2 == 0 ? 7 * i : 1000 + rows - 1 - i));
  }
  Tensor planned_there, last_there, tokens;
  ASSIGN_OR_RETURN(planned_there, IntsOnDevice(*bench, planned, {rows}));
  ASSIGN_OR_RETURN(last_there, IntsOnDevice(*bench, last, {rows}));
  ASSIGN_OR_RETURN(tokens, Tensor::Allocate(DType::kI32, {rows}, bench->stream().device()));
  RETURN_IF_ERROR(bench->Poison(tokens));
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(1, [&](int) {
    return ops::ResolveTokens(bench->stream(), IntView(planned_there.view()), last_there, tokens);
  }));
  RETURN_IF_ERROR(CheckInts(*bench, "resolve tokens", tokens, want));
  bench->Emit(OpLine("resolve tokens", absl::StrCat("T=", rows), 10.0 * rows), timing);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchElements(Bench* bench) {
  for (const int64_t rows : {bench->Pick(32, 3), bench->Pick(8192, 9)}) {
    RETURN_IF_ERROR(bench->Measure("clamp", [&] { return BenchClamp(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("gather", [&] { return BenchGather(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("count experts", [&] { return BenchCounts(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("resolve tokens", [&] { return BenchResolve(bench, rows); }));
  }
  return absl::OkStatus();
}

}  // namespace switchyard
