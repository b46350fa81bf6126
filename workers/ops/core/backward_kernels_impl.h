// What each kernel file of the way back defines, in the namespace of the instruction set that it is being compiled for
// (../kernels_impl.h).  Only for *_cpu.cc files.
#pragma once

#include "workers/ops/core/backward_kernels.h"
#include "workers/ops/core/simd.h"

namespace switchyard::ops::SY_KERNEL_NS {

// row_ops_backward_cpu.cc
void SwiGluBackwardRows(const SwiGluBackwardArgs& args, int64_t begin, int64_t end);
void RmsNormBackwardRows(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
void ColumnSums(const ColumnSumArgs& args, int64_t begin, int64_t end, void* sums);
void AddPartials(const AddPartialsArgs& args, int64_t begin, int64_t end);
void RopeBackwardRows(const RopeArgs& args, int64_t begin, int64_t end);
void ClampBackwardRows(const ClampBackwardArgs& args, int64_t begin, int64_t end);
// layer_norm_backward_cpu.cc
void LayerNormBackwardRows(const LayerNormBackwardArgs& args, int64_t begin, int64_t end, void* dgamma);
// gelu_backward_cpu.cc
void GeluBackwardRows(const GeluBackwardArgs& args, int64_t begin, int64_t end);
// expert_bias_backward_cpu.cc
void ExpertBiasBackwardRows(const ExpertBiasBackwardArgs& args, int64_t begin, int64_t end, void* sums);
// row_scale_backward_cpu.cc
void RowScaleBackwardRows(const RowScaleBackwardArgs& args, int64_t begin, int64_t end);
// router_backward_cpu.cc
void RouterBackwardRows(const RouterBackwardArgs& args, int64_t begin, int64_t end, void* scratch);
void RouterSums(const RouterSumsArgs& args, int64_t begin, int64_t end, double* sums);
// attention_backward_cpu.cc
void AttentionBackward(const AttentionBackwardTask& task);
// loss_cpu.cc
void CrossEntropyRows(const CrossEntropyArgs& args, int64_t begin, int64_t end);
void EmbedBackwardColumns(const EmbedBackwardArgs& args, int64_t begin, int64_t end);
// adamw_cpu.cc
void AdamWRange(const AdamWArgs& args, int64_t begin, int64_t end);
double SumOfSquaresOf(uint8_t dtype, const void* x, int64_t n);

extern const BackwardKernelTable kBackwardTable;

}  // namespace switchyard::ops::SY_KERNEL_NS
