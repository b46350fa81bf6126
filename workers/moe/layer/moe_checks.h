// Checks of a MoE layer's arguments before it runs, forward or backward.  Internal to workers/moe.  Errors:
// InvalidArgument with what is wrong and what is wanted, or ExpertWeightProvider::Check's.
#pragma once

#include "absl/status/status.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// x [T, H] in the layer's dtype, residual [T, H] in its AccDType.
absl::Status CheckRows(const MoeLayerDesc& desc, const TensorView& x, const TensorView& residual);
// There are as many weights as residents of the rank, or their provider can run these.
absl::Status CheckExperts(const ExpertLayout& layout, int rank, const MoeLayerWeights& weights);
// The same with router and shared expert.
absl::Status CheckLayer(const MoeContext& context, const MoeLayer& layer);
// The schedule fits the layer and its groups: it has the shared expert, there are the groups that it names, and it adds
// the shards of experts.  Errors also: Unimplemented (what such programs do not do).
absl::Status CheckSchedule(const MoeContext& context, const MoeLayer& layer);
// Unimplemented: such a pass cannot be saved for a backward pass.
absl::Status CheckSaved(const MoeContext& context, const MoeLayer& layer);
// FailedPrecondition: a program that copies, and nowhere to copy to.
absl::Status CheckOffload(const MoeContext& context);
// Errors also: FailedPrecondition (nothing was saved, or of another schedule or other rows), Unimplemented (a device).
absl::Status CheckBackward(const MoeContext& context, const MoeLayer& layer, const MoeSaved* saved,
                           const MoeBackwardWeights& weights, const MoeBackwardRows& rows);

}  // namespace switchyard::moe
