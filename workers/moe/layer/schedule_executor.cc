#include "workers/moe/layer/schedule_executor.h"

#include <vector>

#include "scheduler/base/status_macros.h"

namespace switchyard::moe {

absl::Status RunSchedule(const pipeline::MoeSchedule& schedule, MicroOpRunner* runner, AllToAllWatch* watch) {
  std::vector<char> under_way(schedule.ops.size(), 0);
  const auto finish = [&](size_t i) -> absl::Status {
    if (!under_way[i]) return absl::OkStatus();
    under_way[i] = 0;
    RETURN_IF_ERROR(runner->Finish(schedule.ops[i]));
    if (watch != nullptr) watch->End();
    return absl::OkStatus();
  };
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const pipeline::MicroOp& op = schedule.ops[i];
    for (const int dep : op.deps) RETURN_IF_ERROR(finish(static_cast<size_t>(dep)));
    const bool communicating = pipeline::IsCommunicating(op.kind);
    if (communicating && watch != nullptr) RETURN_IF_ERROR(watch->Begin());
    RETURN_IF_ERROR(runner->Start(op));
    under_way[i] = communicating;
  }
  for (size_t i = 0; i < schedule.ops.size(); ++i) RETURN_IF_ERROR(finish(i));
  if (watch != nullptr) watch->LayerEnd();
  return absl::OkStatus();
}

}  // namespace switchyard::moe
