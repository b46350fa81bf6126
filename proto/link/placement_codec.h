// Where a group's experts are, migrations of them, and what a worker reports of its experts, as messages of the worker
// link and back.
//
// Sizes are those of a message: bounded by its bytes, never by a number in it.  Whether a placement or migration fits
// the model the worker checks (CheckGroupPlacement, CheckMigration).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/expert_report.h"
#include "scheduler/placement/background/group_placement.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::GroupPlacement ToProto(const placement::GroupPlacement& placement);
// InvalidArgument: layers that are not world x slots.
absl::StatusOr<placement::GroupPlacement> FromProto(const v1::GroupPlacement& message, int world);

v1::PreparePlacement ToProto(const placement::Migration& migration, int64_t group_epoch);
// InvalidArgument: a move of no known kind, columns that differ in length.
absl::StatusOr<placement::Migration> FromProto(const v1::PreparePlacement& message);

v1::ExpertReport ToProto(const placement::ExpertReport& report, int64_t group_epoch);
// As CheckExpertReport wants it, for a model of so many MoE layers and experts, of any number of devices.
// InvalidArgument names what is wrong.
absl::StatusOr<placement::ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers, int num_experts);

}  // namespace switchyard::link
