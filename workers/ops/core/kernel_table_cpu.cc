#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

const KernelTable kTable = {
    .rms_norm = RmsNormRows,
    .layer_norm = LayerNormRows,
    .rope = RopeRows,
    .rope_backward = RopeBackwardRows,
    .embed = EmbedRows,
    .gelu = GeluRows,
    .clamp = ClampRows,
    .combine = CombineRows,
    .router = RouterRows,
    .attention = AttentionRows,
    .attention_bf16 = AttentionRows,
    .logit_stats = ScanLogits,
    .exp_sum = ExpSum,
    .swiglu_backward = SwiGluBackwardRows,
    .row_scale_backward = RowScaleBackwardRows,
    .rms_norm_backward = RmsNormBackwardRows,
    .layer_norm_backward = LayerNormBackwardRows,
    .gelu_backward = GeluBackwardRows,
    .expert_bias_backward = ExpertBiasBackwardRows,
    .router_backward = RouterBackwardRows,
    .router_sums = RouterSums,
    .column_sums = ColumnSums,
    .add_partials = AddPartials,
    .clamp_backward = ClampBackwardRows,
    .attention_backward = AttentionBackward,
    .embed_backward = EmbedBackwardColumns,
    .cross_entropy = CrossEntropyRows,
    .adamw = AdamWRange,
    .sum_of_squares = SumOfSquaresOf,
};

}  // namespace switchyard::ops::SY_KERNEL_NS
