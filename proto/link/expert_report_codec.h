// What a worker tells of its experts as a message of the worker link, and back.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/background/expert_report.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::ExpertReport ToProto(const placement::ExpertReport& report, int64_t group_epoch);
// As CheckExpertReport wants it, for a model of so many MoE layers and experts, of any number of devices.
// InvalidArgument names what is wrong.
absl::StatusOr<placement::ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers, int num_experts);

}  // namespace switchyard::link
