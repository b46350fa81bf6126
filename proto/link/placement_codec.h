// Codec of the worker link for a group's expert placement, its migrations, and a worker's report on its experts.
//
// Memory is bounded by a message's bytes, never by a number in it.  The worker checks whether a placement or migration
// fits the model (CheckGroupPlacement, CheckMigration).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/expert_report.h"
#include "scheduler/placement/background/group_placement.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::GroupPlacement ToProto(const placement::GroupPlacement& placement);
// InvalidArgument: a layer does not have world x slots entries.
absl::StatusOr<placement::GroupPlacement> FromProto(const v1::GroupPlacement& message, int world);

v1::PreparePlacement ToProto(const placement::Migration& migration, int64_t group_epoch);
// InvalidArgument: an unknown kind of move, or columns of different lengths.
absl::StatusOr<placement::Migration> FromProto(const v1::PreparePlacement& message);

v1::ExpertReport ToProto(const placement::ExpertReport& report, int64_t group_epoch);
// The report passes CheckExpertReport for a model of these MoE layers and experts, on any number of devices.
// InvalidArgument names what is wrong.
absl::StatusOr<placement::ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers, int num_experts);

}  // namespace switchyard::link
