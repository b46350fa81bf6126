// How fast the matrix products are, beside what the machine can do at the same moment.
//
//   gemm_bench [--quick] [--threads=N] [--rounds=N] [--isa=NAME] [--dtype=NAME]
//   [--format=plain|int8|int4|q8_0|q4_0|q4_1|mxfp4|q6_k]
//
// Every round runs each contender between two probes that just read the same weights, so that a machine whose bandwidth
// swings gives fair ratios; medians over rounds are printed.  Answers are checked against a double-precision sum.  The
// last line is JSON.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/bench/measured_on.h"
#include "tests/bench/onednn_gemm.h"
#include "tests/bench/op_bench.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

struct Options {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int rounds = 7;
  bool quick = false;
  DType dtype = DType::kBf16;
  ops::WeightFormat format = ops::WeightFormat::kPlain;
  ops::Isa isa = ops::CurrentIsa();
};

// A cheap generator: seconds matter more here than randomness.
void Fill(const TensorView& t, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1;
  VisitDType(t.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < t.NumElements(); ++i) {
      state = state * 1664525u + 1013904223u;
      t.data<Elem>()[i] = Elem(static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
    }
  });
}

// Seconds that all threads take to read these weights and do nothing with them: the probe.  It reads what the contender
// reads, so that both find the same part of it in a shared cache.
double SecondsToRead(ThreadPool* pool, const std::vector<const ops::Weight*>& weights) {
  typedef uint64_t Line __attribute__((vector_size(64)));
  constexpr int64_t kPartBytes = 512 << 10;
  struct Part {
    const Line* begin;
    int64_t lines;
  };
  std::vector<Part> parts;
  for (const ops::Weight* w : weights) {
    for (int64_t at = 0; at < w->bytes(); at += kPartBytes) {
      parts.push_back({reinterpret_cast<const Line*>(static_cast<const char*>(w->data()) + at),
                       std::min(kPartBytes, w->bytes() - at) / 64});
    }
  }
  return SecondsOf([&] {
    pool->Run(static_cast<int64_t>(parts.size()), [&](int64_t i) {
      Line sum[4] = {};
      for (int64_t line = 0; line < parts[i].lines; line += 4) {
        for (int j = 0; j < 4; ++j) {
          __builtin_prefetch(parts[i].begin + line + 48 + j);
          sum[j] ^= parts[i].begin[line + j];
        }
      }
      const Line all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
      __asm__ volatile("" : : "m"(all));
    });
  });
}

// One line of the table: something that is timed once a round.
struct Contender {
  std::string name;
  std::vector<const ops::Weight*> reads;  // by one pass
  double bytes, flops;                    // of one pass
  std::function<void()> pass;
  std::vector<double> gigabytes = {}, of_probe = {}, gigaflops = {};
};

void RunRounds(const Options& options, ThreadPool* pool, std::vector<Contender>* contenders) {
  for (int round = 0; round < options.rounds; ++round) {
    for (Contender& c : *contenders) {
      SecondsToRead(pool, c.reads);  // after another contender: for the caches' state
      const double before = SecondsToRead(pool, c.reads);
      const double seconds = SecondsOf(c.pass);
      const double after = SecondsToRead(pool, c.reads);
      c.gigabytes.push_back(c.bytes / seconds * 1e-9);
      c.of_probe.push_back((before + after) / 2 / seconds);
      c.gigaflops.push_back(c.flops / seconds * 1e-9);
    }
  }
  for (const Contender& c : *contenders) {
    std::printf("%-32s %8.1f GB/s of weights", c.name.c_str(), Median(c.gigabytes));
    if (c.reads.empty()) {
      std::printf("%24s", "");
    } else {
      std::printf("   %5.2f of the probe   ", Median(c.of_probe));
    }
    std::printf("%8.0f GFLOP/s\n", Median(c.gigaflops));
  }
  std::fflush(stdout);
}

// Random weights in few bits: errors of many products, which mostly cancel.
double Allowed(ops::WeightFormat format) {
  return format == ops::WeightFormat::kPlain ? 1e-3 : ops::WeightBits(format) == 8 ? 3e-3 : 2e-2;
}

void CheckElement(const char* what, double got, double want, double magnitude, ops::WeightFormat format) {
  if (std::fabs(got - want) <= 0.01 * std::fabs(want) + Allowed(format) * magnitude) return;
  std::fprintf(stderr, "gemm_bench: wrong answer of %s: %g, not %g\n", what, got, want);
  std::exit(1);
}

// Spot checks of y = x · wᵀ.
void CheckProduct(const char* what, const TensorView& x, const TensorView& w, const TensorView& y,
                  ops::WeightFormat format = ops::WeightFormat::kPlain) {
  for (int64_t i : {int64_t{0}, x.dim(0) - 1}) {
    for (int64_t j : {int64_t{0}, w.dim(0) / 2, w.dim(0) - 1}) {
      VisitDType(x.dtype(), [&]<class Elem>() {
        double want = 0, magnitude = 0;
        for (int64_t k = 0; k < x.dim(1); ++k) {
          const double term =
              static_cast<double>(Acc<Elem>(x.row<Elem>(i)[k])) * static_cast<double>(Acc<Elem>(w.row<Elem>(j)[k]));
          want += term, magnitude += std::fabs(term);
        }
        CheckElement(what, y.row<float>(i)[j], want, magnitude, format);
      });
    }
  }
}

// N = K = 2048, matrices in turn so that none is in a cache when its turn comes.
void Dense(const Options& options, const Stream& stream, std::string* json) {
  constexpr int64_t kSide = 2048;
  const int num_matrices = options.quick ? 24 : 96;
  const Tensor raw(options.dtype, {kSide, kSide});
  std::vector<ops::Weight> weights;
  for (int i = 0; i < num_matrices; ++i) {
    Fill(raw, num_matrices - i);
    weights.push_back(
        *ops::PackWeight(stream, {.n = kSide, .k = kSide, .dtype = options.dtype, .format = options.format}, raw));
  }
  const Tensor x(options.dtype, {2048, kSide}), y(DType::kF32, {2048, kSide});
  Fill(x, 7);
  std::vector<std::unique_ptr<OneDnnGemm>> theirs;
  std::vector<Contender> table;
  const double bytes = static_cast<double>(weights[0].bytes());
  for (int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048}) {
    const TensorView xs = x.view().Rows(0, m), ys = y.view().Rows(0, m);
    const int matrices = m <= 64 ? num_matrices : m <= 512 ? num_matrices / 4 : 3;
    std::vector<const ops::Weight*> reads;
    for (int i = 0; i < matrices; ++i) reads.push_back(&weights[i]);
    table.push_back({absl::StrCat("ours M=", m), reads, matrices * bytes, 2.0 * m * kSide * kSide * matrices,
                     [=, &weights, &stream, &options] {
                       for (int i = 0; i < matrices; ++i) {
                         SY_CHECK_OK(ops::Gemm(stream, {.isa = options.isa}, xs, weights[i], TensorView(), ys));
                       }
                     }});
    SY_CHECK_OK(ops::Gemm(stream, {.isa = options.isa}, xs, weights.back(), TensorView(), ys));
    CheckProduct("Gemm", xs, raw, ys, options.format);
    if (options.format != ops::WeightFormat::kPlain || (m != 1 && m < 16)) continue;
    absl::StatusOr<std::unique_ptr<OneDnnGemm>> gemm = OneDnnGemm::Create(m, raw, options.threads);
    if (!gemm.ok()) continue;
    OneDnnGemm* oned = theirs.emplace_back(*std::move(gemm)).get();
    SY_CHECK_OK(oned->Run(xs, ys));
    CheckProduct("oneDNN", xs, raw, ys);
    // One matrix again and again: its best case, from the cache.
    table.push_back(
        {absl::StrCat("oneDNN M=", m, " (one matrix, cached)"), {}, 3 * bytes, 6.0 * m * kSide * kSide, [=] {
           for (int i = 0; i < 3; ++i) SY_CHECK_OK(oned->Run(xs, ys));
         }});
  }
  RunRounds(options, &stream.pool(), &table);
  for (const Contender& c : table) {
    const std::string key = c.name.substr(0, c.name.find(' ', 7));
    absl::StrAppend(json, ", \"", key, "\": {\"of_probe\": ", Median(c.of_probe), ", \"gflops\": ", Median(c.gigaflops),
                    "}");
  }
}

// Which tokens each expert computes, in the layout that ExpertFfn takes: every token has k different experts of n.
struct Routing {
  std::vector<int32_t> offsets;  // [n + 1]
  std::vector<int32_t> token;    // [tokens * k]
};

Routing RandomRouting(int64_t tokens, int64_t n, int64_t k, std::mt19937* rng) {
  std::vector<std::vector<int32_t>> of_expert(n);
  std::vector<int64_t> ids(n);
  for (int64_t t = 0; t < tokens; ++t) {
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), *rng);
    for (int64_t i = 0; i < k; ++i) of_expert[ids[i]].push_back(static_cast<int32_t>(t));
  }
  Routing routing{.offsets = {0}, .token = {}};
  for (const std::vector<int32_t>& rows : of_expert) {
    routing.token.insert(routing.token.end(), rows.begin(), rows.end());
    routing.offsets.push_back(static_cast<int32_t>(routing.token.size()));
  }
  return routing;
}

// A layer's experts at OLMoE's shape: 64 experts, 8 a token, H 2048, F 1024, random routing.
void Experts(const Options& options, const Stream& stream, std::string* json) {
  constexpr int64_t kExperts = 64, kTopK = 8, kH = 2048, kF = 1024;
  std::vector<ops::Weight> gate_up, down;
  std::vector<const ops::Weight*> gate_up_of, down_of;
  const Tensor raw_up(options.dtype, {2 * kF, kH}), raw_down(options.dtype, {kH, kF});
  Fill(raw_up, 1), Fill(raw_down, 2);
  for (int64_t e = 0; e < kExperts; ++e) {
    gate_up.push_back(
        *ops::PackWeight(stream, {2 * kF, kH, options.dtype, ops::WeightLayout::kGatedPanels, options.format}, raw_up));
    down.push_back(
        *ops::PackWeight(stream, {.n = kH, .k = kF, .dtype = options.dtype, .format = options.format}, raw_down));
  }
  for (int64_t e = 0; e < kExperts; ++e) gate_up_of.push_back(&gate_up[e]), down_of.push_back(&down[e]);
  const Tensor x(options.dtype, {512, kH}), hidden(options.dtype, {512 * kTopK, kF}),
      y(options.dtype, {512 * kTopK, kH});
  Fill(x, 3);

  std::mt19937 rng(1);
  std::vector<Contender> table;
  for (int64_t tokens : {1, 16, 64, 512}) {
    // Eight routings in turn, so that few tokens do not find their experts in a cache.
    auto routings = std::make_shared<std::vector<Routing>>(tokens >= 512 ? 1 : 8);
    double bytes = 0;
    std::vector<const ops::Weight*> reads;
    for (Routing& routing : *routings) {
      routing = RandomRouting(tokens, kExperts, kTopK, &rng);
      for (int64_t e = 0; e < kExperts; ++e) {
        if (routing.offsets[e] == routing.offsets[e + 1]) continue;
        reads.push_back(gate_up_of[e]), reads.push_back(down_of[e]);
        bytes += static_cast<double>(gate_up[e].bytes() + down[e].bytes());
      }
    }
    const int64_t rows = tokens * kTopK;
    table.push_back({absl::StrCat("experts T=", tokens), reads, bytes, 6.0 * rows * kF * kH * routings->size(),
                     [=, &options, &stream, &x, &hidden, &y] {
                       for (const Routing& routing : *routings) {
                         SY_CHECK_OK(ops::ExpertFfn(stream,
                                                    {.gate_up = gate_up_of,
                                                     .down = down_of,
                                                     .offsets = routing.offsets,
                                                     .x_rows = routing.token,
                                                     .isa = options.isa},
                                                    x.view().Rows(0, tokens), hidden.view().Rows(0, rows),
                                                    y.view().Rows(0, rows)));
                       }
                     }});
  }
  RunRounds(options, &stream.pool(), &table);
  for (const Contender& c : table) {
    absl::StrAppend(json, ", \"", c.name, "\": {\"of_probe\": ", Median(c.of_probe),
                    ", \"gflops\": ", Median(c.gigaflops), "}");
  }
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    bool ok = true;
    if (arg == "--quick") {
      options.quick = true, options.rounds = 3;
    } else if (absl::ConsumePrefix(&arg, "--threads=")) {
      ok = absl::SimpleAtoi(arg, &options.threads) && options.threads >= 1;
    } else if (absl::ConsumePrefix(&arg, "--rounds=")) {
      ok = absl::SimpleAtoi(arg, &options.rounds) && options.rounds >= 1;
    } else if (absl::ConsumePrefix(&arg, "--isa=")) {
      const absl::StatusOr<ops::Isa> isa = ops::ParseIsa(arg);
      ok = isa.ok() && *isa <= ops::DetectedIsa();
      if (ok) options.isa = *isa;
    } else if (arg == "--dtype=fp32") {
      options.dtype = DType::kF32;
    } else if (arg == "--dtype=fp16") {
      options.dtype = DType::kF16;
    } else if (absl::ConsumePrefix(&arg, "--format=")) {
      const std::optional<ops::WeightFormat> format = ops::FindWeightFormat(arg);
      ok = format.has_value();
      if (ok) options.format = *format;
    } else {
      ok = arg == "--dtype=bf16";
    }
    if (!ok) {
      std::fprintf(stderr,
                   "gemm_bench: cannot use %s; flags: --quick --threads=N --rounds=N --isa=NAME --dtype=bf16|fp16|fp32 "
                   "--format=plain|int8|int4|q8_0|q4_0|q4_1|mxfp4|q6_k\n",
                   argv[i]);
      return 2;
    }
  }
  ThreadPool pool(options.threads);
  const Stream stream = Stream::OnCpu(&pool);
  std::printf("%s %s %s, %d threads\n", ops::IsaName(options.isa), DTypeName(options.dtype),
              ops::WeightFormatName(options.format), options.threads);
  std::string json = absl::StrCat("{\"bench\": \"gemm\", \"isa\": \"", ops::IsaName(options.isa), "\", \"dtype\": \"",
                                  DTypeName(options.dtype), "\", \"format\": \"", ops::WeightFormatName(options.format),
                                  "\", \"threads\": ", options.threads);
  Dense(options, stream, &json);
  Experts(options, stream, &json);
  std::printf("%s, \"commit\": \"%s\", \"processor\": \"%s\"}\n", json.c_str(), bench::Commit().c_str(),
              bench::Processor().c_str());
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
