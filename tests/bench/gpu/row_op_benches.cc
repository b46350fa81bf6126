// The ops that walk rows, at Qwen3-30B-A3B's widths.  Sampled rows are checked against the same op on the CPU.
#include <numeric>
#include <utility>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/op_lines.h"
#include "tests/bench/gpu/parts.h"
#include "tests/bench/gpu/routing.h"
#include "workers/ops/embedding/embedding.h"
#include "workers/ops/exchange/combine.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/norm/rms_norm.h"
#include "workers/ops/router/router.h"
#include "workers/ops/sampling/device_sampling.h"
#include "workers/ops/sampling/sampling.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_queue.h"

namespace switchyard {
namespace {

constexpr int64_t kChecked = 5;

absl::Status BenchNorm(Bench* bench, int64_t rows) {
  const int64_t hidden = bench->Pick(2048, 64);
  const int sets = bench->Sets(rows * hidden * 6);
  std::vector<Tensor> x(sets), y(sets);
  Tensor gamma;
  const Tensor gamma_host = bench->OnHost(99, DType::kBf16, 1, hidden);
  ASSIGN_OR_RETURN(gamma, CopyToDevice(bench->stream(), gamma_host.view().Reshape({hidden})));
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(x[i], bench->OnDevice(i, DType::kF32, rows, hidden));
    ASSIGN_OR_RETURN(y[i], Tensor::Allocate(DType::kBf16, {rows, hidden}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(y[i]));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing,
                   bench->Time(sets, [&](int i) { return ops::RmsNorm(bench->stream(), {}, x[i], gamma, y[i]); }));
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench->stream(), y[0]));
  const Tensor input = bench->OnHost(0, DType::kF32, rows, hidden), want(DType::kBf16, {1, hidden});
  Difference difference;
  for (const int64_t row : SampledRows(rows, kChecked)) {
    RETURN_IF_ERROR(
        ops::RmsNorm(bench->cpu(), {}, input.view().Rows(row, 1), gamma_host.view().Reshape({hidden}), want));
    difference.AddRow(got.view().Rows(row, 1), want, 0);
  }
  RETURN_IF_ERROR(difference.Check("rms_norm", kBf16Limit));
  bench->Emit(OpLine("rms_norm", absl::StrCat("T=", rows, " H=", hidden), 6.0 * rows * hidden), timing);
  return absl::OkStatus();
}

absl::Status BenchEmbed(Bench* bench, int64_t rows) {
  const int64_t hidden = bench->Pick(2048, 64), vocab = bench->Pick(151936, 50);
  Tensor table;
  ASSIGN_OR_RETURN(table, bench->OnDevice(0, DType::kBf16, vocab, hidden));
  const int sets = bench->Sets(rows * hidden * 6);
  std::vector<Tensor> tokens(sets), y(sets);
  std::vector<std::vector<int32_t>> ids(sets);
  for (int i = 0; i < sets; ++i) {
    for (int64_t t = 0; t < rows; ++t) ids[i].push_back(static_cast<int32_t>((t * 7919 + i * 104729) % vocab));
    ASSIGN_OR_RETURN(tokens[i], IntsOnDevice(*bench, ids[i], {rows}));
    ASSIGN_OR_RETURN(y[i], Tensor::Allocate(DType::kF32, {rows, hidden}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(y[i]));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::Embed(bench->stream(), table, IntView(tokens[i].view()), y[i]);
  }));
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench->stream(), y[1]));
  Difference difference;
  for (const int64_t row : SampledRows(rows, kChecked)) {
    difference.AddRow(got.view().Rows(row, 1), bench->Window(0, vocab, hidden).Rows(ids[1][row], 1), 0);
  }
  RETURN_IF_ERROR(difference.Check("embed", 0));
  bench->Emit(OpLine("embed", absl::StrCat("T=", rows, " H=", hidden), 6.0 * rows * hidden), timing);
  return absl::OkStatus();
}

absl::Status BenchRouter(Bench* bench, int64_t rows) {
  const int64_t experts = bench->Pick(128, 8), top_k = bench->Pick(8, 2);
  const int sets = bench->Sets(rows * (experts + 2 * top_k) * 4);
  const ops::RouterDesc desc = {.top_k = top_k, .renormalize = true};
  std::vector<Tensor> logits(sets), idx(sets), weight(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(logits[i], bench->OnDevice(i, DType::kF32, rows, experts));
    ASSIGN_OR_RETURN(idx[i], Tensor::Allocate(DType::kI32, {rows, top_k}, bench->stream().device()));
    ASSIGN_OR_RETURN(weight[i], Tensor::Allocate(DType::kF32, {rows, top_k}, bench->stream().device()));
    RETURN_IF_ERROR(bench->Poison(idx[i]));
    RETURN_IF_ERROR(bench->Poison(weight[i]));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::RouteTopK(bench->stream(), desc, logits[i], idx[i], weight[i]);
  }));
  Tensor got_weight;
  ASSIGN_OR_RETURN(got_weight, CopyToHost(bench->stream(), weight[0]));
  const Tensor input = bench->OnHost(0, DType::kF32, rows, experts);
  const Tensor want_idx(DType::kI32, {rows, top_k}), want_weight(DType::kF32, {rows, top_k});
  RETURN_IF_ERROR(ops::RouteTopK(bench->cpu(), desc, input, want_idx, want_weight));
  // Logits are short bf16 numbers, so that equal ones are many and their order is checked, too.
  RETURN_IF_ERROR(
      CheckInts(*bench, "router", idx[0], {want_idx.data<int32_t>(), want_idx.data<int32_t>() + rows * top_k}));
  Difference difference;
  for (const int64_t row : SampledRows(rows, kChecked)) difference.AddRow(got_weight, want_weight, row);
  RETURN_IF_ERROR(difference.Check("router", 1e-5));
  bench->Emit(
      OpLine("router", absl::StrCat("T=", rows, " E=", experts, " K=", top_k), 4.0 * rows * (experts + 2 * top_k)),
      timing);
  return absl::OkStatus();
}

struct Ordered {
  BenchRouting routing;
  Tensor idx, weight;               // [T, K] on the device
  Tensor offsets, token, slot_row;  // ExpertOrder's
  ops::ExpertOrder order() const { return {.offsets = offsets, .token = token, .slot_row = slot_row}; }
};

absl::StatusOr<Ordered> MakeOrdered(Bench* bench, int64_t rows, int64_t experts, int64_t top_k, uint64_t set) {
  Ordered made;
  made.routing = MakeRouting(rows, experts, top_k, set);
  ASSIGN_OR_RETURN(made.idx, IntsOnDevice(*bench, made.routing.idx, {rows, top_k}));
  const TensorView weight(made.routing.weight.data(), DType::kF32, {rows, top_k});
  ASSIGN_OR_RETURN(made.weight, CopyToDevice(bench->stream(), weight));
  const Device device = bench->stream().device();
  ASSIGN_OR_RETURN(made.offsets, Tensor::Allocate(DType::kI32, {experts + 1}, device));
  ASSIGN_OR_RETURN(made.token, Tensor::Allocate(DType::kI32, {rows * top_k}, device));
  ASSIGN_OR_RETURN(made.slot_row, Tensor::Allocate(DType::kI32, {rows * top_k}, device));
  for (const Tensor* tensor : {&made.offsets, &made.token, &made.slot_row}) RETURN_IF_ERROR(bench->Poison(*tensor));
  return made;
}

// Order by expert, then combine: both need the same routing.
absl::Status BenchOrderAndCombine(Bench* bench, int64_t rows) {
  const int64_t hidden = bench->Pick(2048, 64), experts = bench->Pick(128, 8), top_k = bench->Pick(8, 2);
  const int sets = bench->Sets(rows * top_k * hidden * 2);
  std::vector<Ordered> made(sets);
  std::vector<Tensor> y(sets), residual(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(made[i], MakeOrdered(bench, rows, experts, top_k, i));
    ASSIGN_OR_RETURN(y[i], bench->OnDevice(2 * i, DType::kBf16, rows * top_k, hidden));
    ASSIGN_OR_RETURN(residual[i], bench->OnDevice(2 * i + 1, DType::kF32, rows, hidden));
  }
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::BuildExpertOrder(bench->stream(), made[i].idx, experts, made[i].order());
  }));
  const Tensor offsets(DType::kI32, {experts + 1}), token(DType::kI32, {rows * top_k}),
      slot_row(DType::kI32, {rows * top_k});
  const TensorView idx(made[0].routing.idx.data(), DType::kI32, {rows, top_k});
  RETURN_IF_ERROR(
      ops::BuildExpertOrder(bench->cpu(), idx, experts, {.offsets = offsets, .token = token, .slot_row = slot_row}));
  RETURN_IF_ERROR(CheckInts(*bench, "expert order: offsets", made[0].offsets, IntsOf(offsets)));
  RETURN_IF_ERROR(CheckInts(*bench, "expert order: token", made[0].token, IntsOf(token)));
  RETURN_IF_ERROR(CheckInts(*bench, "expert order: slot_row", made[0].slot_row, IntsOf(slot_row)));
  const std::string shape = absl::StrCat("T=", rows, " E=", experts, " K=", top_k);
  bench->Emit(OpLine("expert order", shape, 12.0 * rows * top_k), timing);

  const auto combine = [&](int i, const TensorView& to) {
    return ops::Combine(bench->stream(),
                        {.y = y[i], .slot_row = IntView(made[i].slot_row.view()), .weight = made[i].weight}, to);
  };
  // The timed calls add to their residual again and again; the checked one does it once.
  Tensor once;
  ASSIGN_OR_RETURN(once, bench->OnDevice(1, DType::kF32, rows, hidden));
  RETURN_IF_ERROR(combine(0, once));
  ASSIGN_OR_RETURN(once, CopyToHost(bench->stream(), once));
  Difference difference;
  const TensorView outputs = bench->Window(0, rows * top_k, hidden), before = bench->Window(1, rows, hidden);
  for (const int64_t t : SampledRows(rows, kChecked)) {
    for (int64_t h = 0; h < hidden; ++h) {
      double want = ValueAt(before, t, h);
      for (int64_t k = t * top_k; k < (t + 1) * top_k; ++k) {
        want += static_cast<double>(made[0].routing.weight[k]) * ValueAt(outputs, slot_row.data<int32_t>()[k], h);
      }
      difference.Add(ValueAt(once, t, h), want);
    }
  }
  RETURN_IF_ERROR(difference.Check("combine", 1e-5));
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) { return combine(i, residual[i]); }));
  bench->Emit(OpLine("combine", absl::StrCat(shape, " H=", hidden), (2.0 * top_k + 8.0) * rows * hidden), timing);
  return absl::OkStatus();
}

// A batch's rows, each with these params.
absl::Status BenchSampling(Bench* bench, int64_t rows, const char* name, const batching::SamplingParams& params) {
  const int64_t vocab = bench->Pick(151936, 300);
  const int sets = bench->Sets(rows * vocab * 4);
  std::vector<int32_t> floats, random, slot(rows);
  std::iota(slot.begin(), slot.end(), 0);
  const auto bits = [&](float value) { return std::vector<int32_t>(rows, absl::bit_cast<int32_t>(value)); };
  for (int64_t i = 0; i < rows; ++i) random.insert(random.end(), {static_cast<int32_t>(params.seed), 0, 0, 0});
  Tensor temperature, top_k, top_p, min_p, keys, slots, tokens, last;
  ASSIGN_OR_RETURN(temperature, IntsOnDevice(*bench, bits(static_cast<float>(params.temperature)), {rows}));
  ASSIGN_OR_RETURN(top_k, IntsOnDevice(*bench, std::vector<int32_t>(rows, params.top_k), {rows}));
  ASSIGN_OR_RETURN(top_p, IntsOnDevice(*bench, bits(static_cast<float>(params.top_p)), {rows}));
  ASSIGN_OR_RETURN(min_p, IntsOnDevice(*bench, bits(static_cast<float>(params.min_p)), {rows}));
  ASSIGN_OR_RETURN(keys, IntsOnDevice(*bench, random, {4 * rows}));
  ASSIGN_OR_RETURN(slots, IntsOnDevice(*bench, slot, {rows}));
  ASSIGN_OR_RETURN(tokens, Tensor::Allocate(DType::kI32, {rows}, bench->stream().device()));
  ASSIGN_OR_RETURN(last, Tensor::Allocate(DType::kI32, {rows}, bench->stream().device()));
  std::vector<Tensor> logits(sets);
  for (int i = 0; i < sets; ++i) {
    ASSIGN_OR_RETURN(logits[i], bench->OnDevice(i, DType::kF32, rows, vocab));
  }
  const auto view = [](const Tensor& t) { return IntView(t.view()); };
  const ops::PlainSampling requests = {.temperature = view(temperature),
                                       .top_k = view(top_k),
                                       .top_p = view(top_p),
                                       .min_p = view(min_p),
                                       .random = view(keys),
                                       .slot = view(slots)};
  Timing timing;
  ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) {
    return ops::SamplePlain(bench->stream(), logits[i], requests, tokens, last);
  }));
  std::vector<ops::SampleOutcome> outcomes(rows);
  const ops::TokenHistory history;
  RETURN_IF_ERROR(ops::SampleTokens(bench->cpu(), bench->OnHost(sets - 1, DType::kF32, rows, vocab),
                                    std::vector<ops::SampleRequest>(rows, {.params = &params, .history = &history}),
                                    absl::MakeSpan(outcomes)));
  // A drawn token may be the next one where the draw falls on the last bit of a sum.
  Tensor got;
  ASSIGN_OR_RETURN(got, CopyToHost(bench->stream(), tokens));
  int64_t others = 0;
  for (int64_t i = 0; i < rows; ++i) {
    others += got.data<int32_t>()[i] != outcomes[i].token;
    if (others * 10 > (params.temperature > 0 ? rows : 0)) {
      return WrongInt(name, i, got.data<int32_t>()[i], outcomes[i].token);
    }
  }
  bench->Emit(OpLine(name, absl::StrCat("B=", rows, " V=", vocab), 4.0 * rows * vocab), timing);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchRowOps(Bench* bench) {
  for (const int64_t rows : {bench->Pick(32, 3), bench->Pick(8192, 9)}) {
    RETURN_IF_ERROR(bench->Measure("norm", [&] { return BenchNorm(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("embed", [&] { return BenchEmbed(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("router", [&] { return BenchRouter(bench, rows); }));
    RETURN_IF_ERROR(bench->Measure("expert order", [&] { return BenchOrderAndCombine(bench, rows); }));
  }
  // Of logits that lie evenly within ±1/4: top_p keeps 18 000 of 151 936, as of a flat distribution, or 450.
  batching::SamplingParams greedy, flat, narrow, by_id;
  greedy.temperature = 0;
  flat.temperature = 0.02, flat.top_p = 0.95, flat.seed = 7;
  narrow = flat, narrow.temperature = 0.0005;
  by_id = flat, by_id.top_p = 1;
  struct Case {
    const char* name;
    const batching::SamplingParams& params;
  };
  for (const int64_t batch : {int64_t{1}, bench->Pick(32, 3)}) {
    for (const Case& c : {Case{"sample greedy", greedy}, Case{"sample", by_id}, Case{"sample top_p", flat},
                          Case{"sample top_p few", narrow}}) {
      RETURN_IF_ERROR(bench->Measure(c.name, [&] { return BenchSampling(bench, batch, c.name, c.params); }));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard
