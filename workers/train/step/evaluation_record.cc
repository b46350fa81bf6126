#include "workers/train/step/evaluation_record.h"

namespace switchyard::train {

EvaluationRecord WithEvaluation(const EvaluationRecord& record, int64_t step, double loss, double min_improvement) {
  if (record.best_step == 0) return {.best_step = step, .best_loss = loss, .counted_loss = loss};
  EvaluationRecord next = record;
  if (loss < record.best_loss) {
    next.best_step = step;
    next.best_loss = loss;
  }
  if (loss < record.counted_loss - min_improvement) {
    next.counted_loss = loss;
    next.stale = 0;
  } else {
    ++next.stale;
  }
  return next;
}

}  // namespace switchyard::train
