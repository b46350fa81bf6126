// Record of a job's evaluations: which one is the best so far, and how many since one that counted.  Rules by it decide
// which checkpoint is kept and whether the job ends early.
//
// It follows from the evaluations alone, and a checkpoint has it as it was before the evaluation of its own step, which
// an attempt that goes on from there repeats.  So every attempt, and every rank, decides alike.  Pure.
#pragma once

#include <cstdint>

#include "scheduler/jobs/job_spec.h"

namespace switchyard::train {

// All zero: there was no evaluation.
struct EvaluationRecord {
  int64_t best_step = 0;  // of the least loss; of equal ones the first
  double best_loss = 0;
  double counted_loss = 0;  // of the last one that was an improvement
  int64_t stale = 0;        // evaluations since then

  bool operator==(const EvaluationRecord& other) const = default;
};

// The record with an evaluation of a later step.  It is an improvement if it is below the last one by more than
// min_improvement; so many small steps become one.
EvaluationRecord WithEvaluation(const EvaluationRecord& record, int64_t step, double loss, double min_improvement);

// Whether the rule ends the job.
inline bool EndsEarly(const EvaluationRecord& record, const jobs::EarlyStopSpec& rule) {
  return rule.patience > 0 && record.stale >= rule.patience;
}

}  // namespace switchyard::train
