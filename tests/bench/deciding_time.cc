#include "tests/bench/deciding_time.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "scheduler/offload/policies/policy_kind.h"

namespace switchyard::bench {
namespace {

constexpr int kWarmupGates = 1000, kGates = 2000;
constexpr double kBudget = 0.25;
constexpr offload::CopyCost kCost = {.copy_ticks = 1000000, .chunks_per_copy = 16};
constexpr int64_t kLayerTicks = 500000;

struct Shape {
  int num_layers, num_experts;
  int num_draws;  // of experts a gate: top-k of one token, or of several
};

double ThreadMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Experts of every layer are needed by a falling exponential law.
void PrintRow(const Shape& s, const offload::OffloadShape& shape, offload::CachePolicy* policy) {
  std::mt19937 random(1);
  std::exponential_distribution<double> law(8.0 / s.num_experts);
  std::vector<double> times;
  for (int gate = 0; gate < kWarmupGates + kGates; ++gate) {
    std::vector<int32_t> rows(static_cast<size_t>(s.num_experts), 0);
    for (int k = 0; k < s.num_draws; ++k) {
      rows[std::min<size_t>(rows.size() - 1, static_cast<size_t>(law(random)))] = 1;
    }
    const double begin = ThreadMicroseconds();
    policy->OnGate({.layer = gate % s.num_layers, .rows = rows, .compute_ticks = kLayerTicks}, {});
    if (gate >= kWarmupGates) times.push_back(ThreadMicroseconds() - begin);
  }
  std::sort(times.begin(), times.end());
  absl::PrintF("| %d x %d | %d | %d | %s | %.1f | %.1f |\n", s.num_layers, s.num_experts, s.num_draws, shape.num_slots,
               policy->name(), times[times.size() / 2], times[times.size() * 95 / 100]);
}

}  // namespace

void PrintDecidingTimes() {
  absl::PrintF("| layers x experts | draws | slots | policy | median us a gate | p95 |\n|---|---|---|---|---|---|\n");
  for (const Shape& s :
       {Shape{8, 16, 2}, Shape{48, 128, 8}, Shape{48, 128, 64}, Shape{94, 128, 8}, Shape{58, 256, 8}}) {
    const offload::OffloadShape shape = {s.num_layers, s.num_experts,
                                         static_cast<int>(s.num_layers * s.num_experts * kBudget)};
    const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
    const offload::PolicyInput input = {.shape = shape, .cost = kCost, .popularity = popularity};
    for (const offload::OffloadKind kind : {offload::OffloadKind::kExpectedUse, offload::OffloadKind::kLru}) {
      PrintRow(s, shape, offload::MakeCachePolicy(kind, input).get());
    }
  }
}

}  // namespace switchyard::bench
