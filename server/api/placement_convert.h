// What the server tells its workers of expert placement, as the link's messages.  The mirror of
// workers/session/service_placement.h.
#pragma once

#include "scheduler/placement/background/group_placement.h"
#include "scheduler/placement/placement_settings.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard {

v1::PlacementOptions ToProto(const PlacementSettings& settings);
v1::GroupPlacement ToProto(const GroupPlacement& placement);
v1::PreparePlacement ToProto(const PlacementStage& stage, int64_t group_epoch);

}  // namespace switchyard
