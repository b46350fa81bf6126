// Shared by benches of single ops: their two flags, how they take times, and numbers to compute with.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

struct OpBenchFlags {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int rounds = 7;
};

// --threads=N, --rounds=N; none for anything else, which is said on stderr.
inline std::optional<OpBenchFlags> ParseOpBenchFlags(const char* program, int argc, char** argv) {
  OpBenchFlags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool ok = absl::ConsumePrefix(&arg, "--threads=")
                        ? absl::SimpleAtoi(arg, &flags.threads) && flags.threads >= 1
                    : absl::ConsumePrefix(&arg, "--rounds=") ? absl::SimpleAtoi(arg, &flags.rounds) && flags.rounds >= 1
                                                             : false;
    if (ok) continue;
    std::fprintf(stderr, "%s: cannot take %s; flags: --threads=N --rounds=N\n", program, argv[i]);
    return std::nullopt;
  }
  return flags;
}

inline double SecondsOf(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// [rows, columns] in [-1, 1), the same every time.
inline Tensor Filled(DType dtype, int64_t rows, int64_t columns) {
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

}  // namespace switchyard
