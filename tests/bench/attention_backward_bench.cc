// How long attention's way back takes beside the way there, for whole sequences as in training.
//
//   attention_backward_bench [--threads=N] [--rounds=N]
//
// Causal attention has 4 · D products for each visible pair of rows on the way there, and 10 · D on the way back (with
// the scores computed again).  Medians over rounds of GFLOP/s so counted are printed.
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "tests/bench/op_bench.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/attention/attention_backward.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 4, kTokens = 4096, kBlock = 64;

void Compare(const Stream& stream, DType dtype, int64_t dim, int64_t length, int rounds) {
  const int64_t q_width = kHeads * dim, kv_width = kKvHeads * dim, width = q_width + 2 * kv_width;
  const Tensor qkv = Filled(dtype, kTokens, width), out(dtype, {kTokens, q_width}), d = Filled(dtype, kTokens, q_width);
  const Tensor dqkv(dtype, {kTokens, width});
  const Shape cache = ops::KvCacheShape(kTokens / kBlock, kKvHeads, kBlock, dim);
  const Tensor k(dtype, cache), v(dtype, cache);
  std::vector<int32_t> blocks(kTokens / kBlock);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<ops::SequenceRows> rows;
  std::vector<ops::WholeSequence> sequences;
  for (int64_t at = 0; at < kTokens; at += length) {
    rows.push_back({.row_begin = at,
                    .num_query = static_cast<int32_t>(length),
                    .block_table = absl::MakeConstSpan(blocks).subspan(at / kBlock)});
    sequences.push_back({static_cast<int32_t>(at), static_cast<int32_t>(length)});
  }
  SY_CHECK_OK(ops::WriteKv(stream, rows, qkv.view().Columns(q_width, kv_width),
                           qkv.view().Columns(q_width + kv_width, kv_width), {k, v}));
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const double products = static_cast<double>(kTokens) * kHeads * dim * static_cast<double>(length + 1) / 2;
  std::vector<double> there, back;
  for (int round = 0; round < rounds; ++round) {
    const double forward = SecondsOf([&] {
      SY_CHECK_OK(ops::PagedAttention(stream, {.num_heads = kHeads, .scale = scale}, rows,
                                      qkv.view().Columns(0, q_width), {k, v}, out));
    });
    const double backward = SecondsOf([&] {
      SY_CHECK_OK(ops::AttentionBackward(
          stream, {.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = dim, .scale = scale}, sequences, qkv, out,
          d, dqkv));
    });
    there.push_back(4 * products / forward * 1e-9), back.push_back(10 * products / backward * 1e-9);
  }
  std::printf("%-5s D=%-4ld sequences of %-5ld forward %6.0f GFLOP/s  backward %6.0f GFLOP/s\n", DTypeName(dtype),
              static_cast<long>(dim), static_cast<long>(length), Median(there), Median(back));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::optional<OpBenchFlags> flags = ParseOpBenchFlags("attention_backward_bench", argc, argv);
  if (!flags.has_value()) return 2;
  ThreadPool pool(flags->threads);
  const Stream stream = Stream::OnCpu(&pool);
  std::printf("%s, %d threads, %ld tokens, %ld heads over %ld\n", ops::IsaName(ops::CurrentIsa()), flags->threads,
              static_cast<long>(kTokens), static_cast<long>(kHeads), static_cast<long>(kKvHeads));
  for (DType dtype : {DType::kBf16, DType::kF32}) {
    for (int64_t dim : {64, 128}) {
      for (int64_t length : {256, 1024, 4096}) Compare(stream, dtype, dim, length, flags->rounds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
