// A worker's registration, the settings that answer it, and its assignment in a serving group, as messages of the
// worker link and back.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/fleet/engine_settings.h"
#include "scheduler/fleet/rank_assignment.h"
#include "scheduler/fleet/worker_info.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// The message has this program's version of the link (link_protocol.h); its reader checks the version.
v1::Register ToProto(const fleet::WorkerInfo& info);
fleet::WorkerInfo FromProto(const v1::Register& message);

v1::EngineOptions ToProto(const fleet::EngineSettings& settings);
// InvalidArgument: no placement mode of that name, or settings of placement that contradict each other.
absl::StatusOr<fleet::EngineSettings> FromProto(const v1::EngineOptions& message);

v1::JoinGroup ToProto(const fleet::RankAssignment& assignment);
// InvalidArgument: no rank of a group, or a placement of another group's shape.
absl::StatusOr<fleet::RankAssignment> FromProto(const v1::JoinGroup& message);

// InvalidArgument unless 0 <= rank < world.
absl::Status CheckRank(int rank, int world);

}  // namespace switchyard::link
