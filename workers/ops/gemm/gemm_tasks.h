// Cuts a job (gemm_job.h) into tasks.  Pure.  Internal to workers/ops.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/ops/gemm/gemm_job.h"

namespace switchyard::ops {

struct GemmTask {
  const Weight* weight;
  int64_t weight_idx;              // among the job's weights
  int64_t row_begin, row_end;      // of y
  int64_t panel_begin, panel_end;  // gated: even
};

// Returns tasks in the order in which threads draw them.  A task is a run of panels for a range of one expert's rows.
// Early tasks are long, since the start of a run reads memory that was not prefetched; they shrink towards the end, so
// that all threads finish together.  REQUIRES: job is checked.
std::vector<GemmTask> CutIntoTasks(const GemmJob& job, int num_threads);

}  // namespace switchyard::ops
