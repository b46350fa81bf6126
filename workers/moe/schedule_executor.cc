#include "workers/moe/schedule_executor.h"

#include <vector>

#include "scheduler/base/status_macros.h"

namespace switchyard {

absl::Status RunSchedule(const MoeSchedule& schedule, MicroOpRunner* runner) {
  std::vector<char> under_way(schedule.ops.size(), 0);
  const auto finish = [&](size_t i) -> absl::Status {
    if (!under_way[i]) return absl::OkStatus();
    under_way[i] = 0;
    return runner->Finish(schedule.ops[i]);
  };
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const MicroOp& op = schedule.ops[i];
    for (const int dep : op.deps) RETURN_IF_ERROR(finish(static_cast<size_t>(dep)));
    RETURN_IF_ERROR(runner->Start(op));
    under_way[i] = IsCommunicating(op.kind);
  }
  for (size_t i = 0; i < schedule.ops.size(); ++i) RETURN_IF_ERROR(finish(i));
  return absl::OkStatus();
}

}  // namespace switchyard
