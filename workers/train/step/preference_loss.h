// The loss of direct preference optimization (Rafailov et al. 2023, and its label smoothing), of a pair of answers to a
// prompt, from their log probabilities, which are sums over an answer's tokens.  Pure.
//
//   margin = beta * ((chosen - reference.chosen) - (rejected - reference.rejected))
//   loss   = -(1 - label_smoothing) * log sigmoid(margin) - label_smoothing * log sigmoid(-margin)
//
// An answer's reward is beta times its log probability less the reference's, so margin is the difference of the
// rewards.
#pragma once

#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/train_progress.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

struct PairLoss {
  double loss = 0;
  double margin = 0;
  double slope = 0;  // d loss / d chosen; that of rejected is its negative
};

PairLoss PairLossOf(const jobs::DpoSpec& dpo, const PairLogProbs& model, const PairLogProbs& reference);

// Sums over pairs, which ranks add up.
struct PreferenceSums {
  double loss = 0, margin = 0;
  double accurate = 0;  // pairs whose chosen answer has the higher reward
  void Add(const PairLoss& pair);
  jobs::PreferenceFigures Mean(int64_t pairs) const;
};

}  // namespace switchyard::train
