#include "workers/ops/core/backward_kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

const BackwardKernelTable kBackwardTable = {
    .swiglu = SwiGluBackwardRows,
    .row_scale = RowScaleBackwardRows,
    .rms_norm = RmsNormBackwardRows,
    .layer_norm = LayerNormBackwardRows,
    .gelu = GeluBackwardRows,
    .expert_bias = ExpertBiasBackwardRows,
    .router = RouterBackwardRows,
    .router_sums = RouterSums,
    .column_sums = ColumnSums,
    .add_partials = AddPartials,
    .clamp = ClampBackwardRows,
    .rope = RopeBackwardRows,
    .attention = AttentionBackward,
    .embed = EmbedBackwardColumns,
    .cross_entropy = CrossEntropyRows,
    .adamw = AdamWRange,
    .sum_of_squares = SumOfSquaresOf,
};

}  // namespace switchyard::ops::SY_KERNEL_NS
