// The server's flags that workers follow as messages of the worker link, and back.
#pragma once

#include "absl/status/statusor.h"
#include "scheduler/fleet/engine_settings.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::EngineOptions ToProto(const fleet::EngineSettings& settings);
// InvalidArgument: no placement mode of that name, or settings of placement that contradict each other.
absl::StatusOr<fleet::EngineSettings> FromProto(const v1::EngineOptions& message);

}  // namespace switchyard::link
