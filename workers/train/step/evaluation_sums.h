// Sums over the micro-batches of an evaluation: of tokens' losses, or with preferences of pairs'.  Plain data.
#pragma once

#include <cstdint>
#include <optional>

#include "scheduler/jobs/train_progress.h"
#include "workers/train/step/preference_loss.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {

struct EvaluationSums {
  double loss = 0;
  int64_t tokens = 0, pairs = 0;
  double margin = 0, accurate = 0;
  bool of_pairs = false;

  void Add(const StepReport& report) {
    tokens += report.tokens;
    of_pairs = report.preferences.has_value();
    const int64_t count = of_pairs ? report.preferences->pairs : report.tokens;
    loss += report.loss * static_cast<double>(count);
    if (!of_pairs) return;
    pairs += count;
    margin += report.preferences->margin * static_cast<double>(count);
    accurate += report.preferences->accuracy * static_cast<double>(count);
  }
  void Add(const EvaluationSums& other) {
    loss += other.loss;
    tokens += other.tokens;
    pairs += other.pairs;
    margin += other.margin;
    accurate += other.accurate;
    of_pairs = other.of_pairs;
  }
  // Some are there, since the data has targets.
  double Loss() const { return loss / static_cast<double>(of_pairs ? pairs : tokens); }
  std::optional<jobs::PreferenceFigures> Preferences() const {
    if (!of_pairs) return std::nullopt;
    return PreferenceSums{.margin = margin, .accurate = accurate}.Mean(pairs);
  }
};

}  // namespace switchyard::train
