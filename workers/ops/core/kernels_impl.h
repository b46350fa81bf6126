// What each kernel file defines, in the namespace of the instruction set that it is being compiled for (SY_KERNEL_NS,
// set by ops.cmake).  Only for *_cpu.cc files.
#pragma once

#include "workers/ops/core/kernels.h"
#include "workers/ops/core/simd.h"

namespace switchyard::ops::SY_KERNEL_NS {

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end);
void LayerNormRows(const LayerNormArgs& args, int64_t begin, int64_t end);
void RopeRows(const RopeArgs& args, int64_t begin, int64_t end);
void EmbedRows(const EmbedArgs& args, int64_t begin, int64_t end);
void GeluRows(const GeluArgs& args, int64_t begin, int64_t end);
void ClampRows(const ClampArgs& args, int64_t begin, int64_t end);
void CombineRows(const CombineArgs& args, int64_t begin, int64_t end);
void RouterRows(const RouterArgs& args, int64_t begin, int64_t end);
void AttentionRows(const AttentionTask& task);
void AttentionBf16(const AttentionTask& task);  // namespaces avx512_bf16 and amx alone
LogitStats ScanLogits(uint8_t dtype, const void* x, int64_t n);
double ExpSum(uint8_t dtype, const void* x, int64_t n, double max, double scale, void* weights);
void ExpArray(const float* x, int64_t n, float* y);

extern const KernelTable kTable;

}  // namespace switchyard::ops::SY_KERNEL_NS
