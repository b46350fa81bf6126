// Codec of the worker link for a worker's report on its experts.  Memory is bounded by a message's bytes, never by a
// number in it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "scheduler/placement/per_step/expert_report.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::link {

v1::ExpertReport ToProto(const placement::ExpertReport& report, int64_t group_epoch);
// The report passes CheckExpertReport for a model of these MoE layers and experts, on any number of devices.
// InvalidArgument names what is wrong.  Only copies in a time that cannot be, of a worker whose clock is wrong, are
// left out: they would cost its link, report after report.
absl::StatusOr<placement::ExpertReport> FromProto(const v1::ExpertReport& message, int num_moe_layers, int num_experts);

}  // namespace switchyard::link
