// How long attention's way back takes beside the way there, for whole sequences as in training.
//
//   attention_backward_bench [--threads=N] [--rounds=N]
//
// Causal attention has 4 · D products for each visible pair of rows on the way there, and 10 · D on the way back (with
// the scores computed again).  Medians over rounds of GFLOP/s so counted are printed.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "workers/ops/attention.h"
#include "workers/ops/backward/attention_backward.h"
#include "workers/ops/isa.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 4, kTokens = 4096, kBlock = 64;

double SecondsOf(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Tensor Filled(DType dtype, int64_t rows, int64_t columns) {
  Tensor t(dtype, {rows, columns});
  VisitDType(dtype, [&]<class Elem>() {
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * columns; ++i) {
      state = state * 1664525u + 1013904223u;
      t.data<Elem>()[i] = Elem(static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
    }
  });
  return t;
}

void Compare(const Stream& stream, DType dtype, int64_t dim, int64_t length, int rounds) {
  const int64_t q_width = kHeads * dim, kv_width = kKvHeads * dim, width = q_width + 2 * kv_width;
  const Tensor qkv = Filled(dtype, kTokens, width), out(dtype, {kTokens, q_width}), d = Filled(dtype, kTokens, q_width);
  const Tensor dqkv(dtype, {kTokens, width});
  const Shape cache = KvCacheShape(kTokens / kBlock, kKvHeads, kBlock, dim);
  const Tensor k(dtype, cache), v(dtype, cache);
  std::vector<int32_t> blocks(kTokens / kBlock);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<SequenceRows> rows;
  std::vector<WholeSequence> sequences;
  for (int64_t at = 0; at < kTokens; at += length) {
    rows.push_back({.row_begin = at,
                    .num_query = static_cast<int32_t>(length),
                    .block_table = absl::MakeConstSpan(blocks).subspan(at / kBlock)});
    sequences.push_back({static_cast<int32_t>(at), static_cast<int32_t>(length)});
  }
  SY_CHECK_OK(WriteKv(stream, rows, qkv.view().Columns(q_width, kv_width),
                      qkv.view().Columns(q_width + kv_width, kv_width), {k, v}));
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const double products = static_cast<double>(kTokens) * kHeads * dim * static_cast<double>(length + 1) / 2;
  std::vector<double> there, back;
  for (int round = 0; round < rounds; ++round) {
    const double forward = SecondsOf([&] {
      SY_CHECK_OK(PagedAttention(stream, {.num_heads = kHeads, .scale = scale}, rows, qkv.view().Columns(0, q_width),
                                 {k, v}, out));
    });
    const double backward = SecondsOf([&] {
      SY_CHECK_OK(AttentionBackward(stream,
                                    {.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = dim, .scale = scale},
                                    sequences, qkv, out, d, dqkv));
    });
    there.push_back(4 * products / forward * 1e-9), back.push_back(10 * products / backward * 1e-9);
  }
  std::printf("%-5s D=%-4ld sequences of %-5ld forward %6.0f GFLOP/s  backward %6.0f GFLOP/s\n", DTypeName(dtype),
              static_cast<long>(dim), static_cast<long>(length), Median(there), Median(back));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  int threads = static_cast<int>(std::thread::hardware_concurrency()), rounds = 5;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool ok = absl::ConsumePrefix(&arg, "--threads=")  ? absl::SimpleAtoi(arg, &threads) && threads >= 1
                    : absl::ConsumePrefix(&arg, "--rounds=") ? absl::SimpleAtoi(arg, &rounds) && rounds >= 1
                                                             : false;
    if (ok) continue;
    std::fprintf(stderr, "attention_backward_bench: cannot take %s; flags: --threads=N --rounds=N\n", argv[i]);
    return 2;
  }
  ThreadPool pool(threads);
  const Stream stream = Stream::OnCpu(&pool);
  std::printf("%s, %d threads, %ld tokens, %ld heads over %ld\n", IsaName(CurrentIsa()), threads,
              static_cast<long>(kTokens), static_cast<long>(kHeads), static_cast<long>(kKvHeads));
  for (DType dtype : {DType::kBf16, DType::kF32}) {
    for (int64_t dim : {64, 128}) {
      for (int64_t length : {256, 1024, 4096}) Compare(stream, dtype, dim, length, rounds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
