// Codec of the worker link for a worker's registration, the settings that answer it, its assignment in a serving group,
// its progress with that, and what it says when the group has formed.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/fleet/engine_settings.h"
#include "scheduler/fleet/group_ready.h"
#include "scheduler/fleet/load_progress.h"
#include "scheduler/fleet/rank_assignment.h"
#include "scheduler/fleet/worker_info.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

// Fills in this program's version of the link (link_protocol.h), which the reader checks.
v1::Register ToProto(const fleet::WorkerInfo& info);
fleet::WorkerInfo FromProto(const v1::Register& message);

v1::EngineOptions ToProto(const fleet::EngineSettings& settings);
// InvalidArgument: an unknown placement mode, or placement settings that contradict each other.
absl::StatusOr<fleet::EngineSettings> FromProto(const v1::EngineOptions& message);

v1::JoinGroup ToProto(const fleet::RankAssignment& assignment);
// InvalidArgument: a rank outside the group, or a placement that does not fit the group's shape.
absl::StatusOr<fleet::RankAssignment> FromProto(const v1::JoinGroup& message);

v1::LoadProgress ToProto(const fleet::LoadProgress& progress);
// An unknown phase is kWeights; figures come out as 0 <= done <= total.
fleet::LoadProgress FromProto(const v1::LoadProgress& message);

v1::GroupReady ToProto(const fleet::GroupReady& ready);
// Impossible links are none.
fleet::GroupReady FromProto(const v1::GroupReady& message);

// InvalidArgument unless 0 <= rank < world.
absl::Status CheckRank(int rank, int world);

}  // namespace switchyard::link
