// What a MoE layer checks of its arguments before it runs.  Internal to workers/moe.  Free functions; errors are
// InvalidArgument with what is wrong and what is wanted, or ExpertWeightProvider::Check's.
#pragma once

#include "absl/status/status.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

// x [T, H] in the layer's dtype, residual [T, H] in its AccDType.
absl::Status CheckRows(const MoeLayerDesc& desc, const TensorView& x, const TensorView& residual);
// As many weights as the rank has residents, or what has them can run these.
absl::Status CheckExperts(const ExpertLayout& layout, int rank, const MoeLayerWeights& weights);
// The same with router and shared expert.
absl::Status CheckLayer(const MoeContext& context, const MoeLayer& layer);
// A schedule for this layer: with its shared expert, and of ops that run here.
absl::Status CheckSchedule(const pipeline::MoeSchedule& schedule, const MoeLayer& layer);
// What can keep what a backward pass needs.  Unimplemented: with what it cannot.
absl::Status CheckSaved(const MoeContext& context, const MoeLayer& layer);

}  // namespace switchyard::moe
