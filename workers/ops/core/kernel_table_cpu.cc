#include "workers/ops/core/kernels_impl.h"

namespace switchyard::ops::SY_KERNEL_NS {

const KernelTable kTable = {
    .rms_norm = RmsNormRows,
    .layer_norm = LayerNormRows,
    .rope = RopeRows,
    .embed = EmbedRows,
    .gelu = GeluRows,
    .clamp = ClampRows,
    .combine = CombineRows,
    .router = RouterRows,
    .attention = AttentionRows,
    .attention_bf16 = AttentionRows,
    .logit_stats = ScanLogits,
    .exp_sum = ExpSum,
    .exp = ExpArray,
};

}  // namespace switchyard::ops::SY_KERNEL_NS
