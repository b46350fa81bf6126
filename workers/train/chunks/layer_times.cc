#include "workers/train/chunks/layer_times.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/job/rank_agreement.h"

namespace switchyard::train {
namespace {

constexpr double kBudgetSeconds = 2, kLongSeconds = 10;  // of rounds that count
constexpr size_t kLeastRounds = 3, kMostRounds = 9;
constexpr double kNoGain = 1.005;

// A layer that takes seconds varies little, and the ranks see a request to stop only behind all rounds.
bool MeasuresOn(size_t rounds, double spent) {
  if (rounds == 0 || spent >= kLongSeconds) return rounds == 0;
  return rounds < kLeastRounds || (rounds < kMostRounds && spent < kBudgetSeconds);
}

// The greatest of the ranks' nanoseconds; behind it all ranks begin together.
absl::StatusOr<double> SlowestSeconds(const LayerTimesInput& input, absl::Duration mine) {
  RankWord word;
  word.number = absl::ToInt64Nanoseconds(mine);
  ASSIGN_OR_RETURN(const std::vector<RankWord> words, ExchangeWords(input.comm, word, input.limit));
  int64_t slowest = 0;
  for (const RankWord& each : words) slowest = std::max(slowest, each.number);
  return static_cast<double>(slowest) * 1e-9;
}

}  // namespace

absl::StatusOr<std::vector<ChunkTime>> MeasureLayers(const LayerTimesInput& input) {
  std::vector<ChunkTime> times;
  for (int32_t chunks = 1; chunks <= input.most; chunks *= 2) times.push_back({.chunks = chunks});
  std::vector<std::vector<double>> taken(times.size());  // by round
  double spent = 0;
  // The first round, which makes buffers, does not count.
  for (size_t round = 0; round == 0 || MeasuresOn(round - 1, spent); ++round) {
    for (size_t i = 0; i < times.size(); ++i) {
      const size_t turn = (i + round) % times.size();
      const absl::Time begin = MonotonicNow();
      RETURN_IF_ERROR(input.run(times[turn].chunks));
      ASSIGN_OR_RETURN(const double seconds, SlowestSeconds(input, MonotonicNow() - begin));
      if (round == 0) continue;
      taken[turn].push_back(seconds);
      spent += seconds;
    }
  }
  for (size_t i = 0; i < times.size(); ++i) {
    const auto middle = taken[i].begin() + std::ssize(taken[i]) / 2;
    std::nth_element(taken[i].begin(), middle, taken[i].end());
    times[i].seconds = *middle;
  }
  return times;
}

ChunkTime FastestOf(const std::vector<ChunkTime>& times) {
  double least = HUGE_VAL;
  for (const ChunkTime& each : times) least = std::min(least, each.seconds);
  return *std::find_if(times.begin(), times.end(),
                       [&](const ChunkTime& each) { return each.seconds <= least * kNoGain; });
}

std::string ChunkTimesText(const std::vector<ChunkTime>& times) {
  std::string text;
  for (const ChunkTime& each : times) {
    const double ms = 1e3 * each.seconds;
    absl::StrAppend(&text, text.empty() ? "" : ", ", each.chunks, each.chunks == 1 ? " chunk " : " chunks ",
                    ms < 1000 ? absl::StrFormat("%.3g ms", ms) : absl::StrFormat("%.0f ms", ms));
  }
  return text;
}

}  // namespace switchyard::train
