#include "server/placement_meter.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

// What a host's memory gives, and what one core multiplies: as the workers take it for an expert budget.
constexpr double kMemoryBytesPerSecond = 10e9;
constexpr double kFlopPerSecond = 50e9;
constexpr double kFlopPerByte = 1;  // of a row and an expert's weights in bf16: two for each of its numbers

constexpr double kLongestStep = 1e5;  // seconds

constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode};

// Of a worker's message.
double Possible(double seconds) { return seconds >= 0 && seconds < kLongestStep ? seconds : 0; }

}  // namespace

PlacementMeter::PlacementMeter(int64_t expert_bytes, double copy_bytes_per_second)
    : expert_bytes_(expert_bytes),
      copy_bytes_per_second_(copy_bytes_per_second > 0 ? copy_bytes_per_second : kMemoryBytesPerSecond) {}

void PlacementMeter::Add(const StepResult& step, const ExpertCensus& census) {
  double slowest = 0;
  for (const RankResult& rank : step.ranks) {
    if (rank.expert_rows > 0) {
      expert_seconds_ += Possible(rank.timings.expert_seconds);
      expert_rows_ += static_cast<double>(rank.expert_rows);
    }
    slowest = std::max(slowest, Possible(rank.timings.total_seconds));
  }
  step_seconds_ += slowest;
  layers_ += census.shape().num_layers;
  for (const Phase phase : kPhases) {
    PhaseSteps& of = phases_[static_cast<size_t>(phase)];
    const int64_t tokens = census.total_tokens(phase) - of.seen_tokens;
    of.seen_tokens += tokens;
    of.tokens += static_cast<double>(tokens);
    of.steps += tokens > 0 ? 1 : 0;
  }
}

void PlacementMeter::Fade() {
  for (double* sum : {&expert_seconds_, &expert_rows_, &step_seconds_, &layers_, &phases_[0].steps, &phases_[0].tokens,
                      &phases_[1].steps, &phases_[1].tokens}) {
    *sum /= 2;
  }
}

double PlacementMeter::row_seconds() const { return expert_rows_ > 0 ? expert_seconds_ / expert_rows_ : 0; }

double PlacementMeter::layer_seconds() const { return layers_ > 0 ? step_seconds_ / layers_ : 0; }

MoveCosts PlacementMeter::Costs() const {
  CostModel model;
  model.expert_bytes = static_cast<double>(expert_bytes_);
  model.copy_bytes_per_s = copy_bytes_per_second_;
  const double unmeasured = kFlopPerByte * model.expert_bytes / kFlopPerSecond;
  model.seconds_per_row = row_seconds() > 0 ? row_seconds() : unmeasured;
  model.layer_seconds = layer_seconds();
  return CostsOf(model);
}

ResidencyCosts PlacementMeter::PlanCosts(int64_t horizon_steps) const {
  ResidencyCosts costs;
  costs.row_seconds = row_seconds();
  costs.move_seconds = copy_seconds();
  costs.expert_bytes = expert_bytes_;
  costs.horizon_steps = horizon_steps;
  return costs;
}

std::vector<PhaseProfile> PlacementMeter::Profiles(const ExpertCensus& census) const {
  constexpr int64_t kMostRows = int64_t{1} << 40;  // of an expert: a layer's sum stays a number
  std::vector<PhaseProfile> profiles;
  for (const Phase phase : kPhases) {
    const PhaseSteps& of = phases_[static_cast<size_t>(phase)];
    const int64_t tokens = census.num_tokens(phase);
    if (tokens == 0 || of.tokens <= 0) continue;
    PhaseProfile profile;
    profile.steps = std::max<int64_t>(1, std::llround(static_cast<double>(tokens) * of.steps / of.tokens));
    for (int layer = 0; layer < census.shape().num_layers; ++layer) {
      const absl::Span<const int64_t> counts = census.Counts(phase, layer);
      const int64_t most = kMostRows / static_cast<int64_t>(counts.size());
      std::vector<int64_t> rows(counts.begin(), counts.end());
      for (int64_t& count : rows) count = std::min(count, most);
      profile.rows.push_back(FromCounts(rows));
    }
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

}  // namespace switchyard
